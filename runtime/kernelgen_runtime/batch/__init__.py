"""Owns batches: requests from a file in the OpenAI batch format, answers into another."""

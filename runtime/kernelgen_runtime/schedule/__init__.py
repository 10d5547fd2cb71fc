"""Owns which request computes which tokens in the next step, and what its result changes."""

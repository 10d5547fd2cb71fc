"""Owns conversations: what a chat request says, its prompt, and what its answer means."""

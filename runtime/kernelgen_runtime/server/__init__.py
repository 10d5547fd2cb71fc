"""Owns the server: an API process that speaks HTTP, an engine process that never waits for it."""

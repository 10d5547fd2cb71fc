"""Owns the typed description of a model: config.json read as hostile input, every value checked."""

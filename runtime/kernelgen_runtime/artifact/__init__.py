"""Owns opening a built artifact: manifest, checks, and the library for this processor."""

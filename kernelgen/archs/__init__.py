"""Owns the architectures: one folder each, found by listing, never imported by name."""

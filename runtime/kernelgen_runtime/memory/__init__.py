"""Owns the paged cache: which page holds which tokens of which request, and how many there are."""

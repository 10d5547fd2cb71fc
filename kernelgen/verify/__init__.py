"""Owns checking kernels and models against their references, and the records of what was found."""

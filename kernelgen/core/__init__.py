"""Leaf of the import order: errors, dtypes, digests, JSON, file writing, shipped resources."""

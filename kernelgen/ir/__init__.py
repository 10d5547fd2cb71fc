"""Owns the typed op graph: dims, values, scalar expressions, blocks, verifier and printer."""

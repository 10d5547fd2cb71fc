"""Owns tuning: candidates of every kernel, compiled anywhere, measured on a GPU, merged as rows."""

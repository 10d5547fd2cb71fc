"""Owns the library: loading it, binding buffers, writing its `args`, running a step."""

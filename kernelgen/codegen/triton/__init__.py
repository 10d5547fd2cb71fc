"""Owns Triton generation for the GPU targets: expressions, tile programs, kernels and tiles."""

"""Owns sampling parameters and the reference of the sampler that runs inside the library."""

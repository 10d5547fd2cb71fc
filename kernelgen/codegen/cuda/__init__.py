"""Owns generation for the GPU target: what a kernel is compiled from, its launches and the step program."""

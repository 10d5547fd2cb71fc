"""Owns generation for the GPU target: units, launches and the step program."""

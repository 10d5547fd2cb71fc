"""Owns C++ generation for the CPU target: expressions, row programs, kernels and the step
program."""

"""Owns measuring a build: whole steps, kernels, prompts and starts, beside baselines."""

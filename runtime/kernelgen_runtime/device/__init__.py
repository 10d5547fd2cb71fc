"""Owns the device a model runs on: choosing it, its memory, its streams and its bandwidth."""

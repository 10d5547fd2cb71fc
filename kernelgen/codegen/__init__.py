"""Owns code generation: kernel families, expression printers and the step program."""

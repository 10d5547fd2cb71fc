"""Owns what the sub-commands do once their options are parsed."""

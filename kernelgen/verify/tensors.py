"""Owns what signatures call torch's classes: torch itself is imported where it is first used."""

from typing import Any, TypeAlias

Tensor: TypeAlias = Any
"""`torch.Tensor`"""
Generator: TypeAlias = Any
"""`torch.Generator`"""

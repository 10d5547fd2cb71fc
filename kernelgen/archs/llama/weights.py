"""Owns the checkpoint names: those that most decoders share."""

from kernelgen.archs.decoder_names import decoder_rules as weight_rules

__all__ = ["weight_rules"]

"""Weight formats as data: what a stored weight means, and how each producer packs and names it."""

from kernelgen.formats.format import WeightFormat, element_type, format_names, weight_format

__all__ = ["WeightFormat", "element_type", "format_names", "weight_format"]

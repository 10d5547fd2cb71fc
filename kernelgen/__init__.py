"""The compiler: a model description becomes a serving wheel, one printable stage after another."""

__version__ = "0.1.0"

"""Owns `python -m kernelgen.cli`."""

from kernelgen.cli.app import main

main()

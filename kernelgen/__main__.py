"""Owns `python -m kernelgen`."""

from kernelgen.cli.app import main

main()

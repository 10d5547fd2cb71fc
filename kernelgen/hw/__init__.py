"""One file per SM with its limits and peaks, device-name aliases; makes no CUDA call."""

from kernelgen.hw.device import Device, Rate
from kernelgen.hw.targets import default_note, device_of_driver_name, devices, parse_target

__all__ = [
    "Device",
    "Rate",
    "default_note",
    "device_of_driver_name",
    "devices",
    "parse_target",
]

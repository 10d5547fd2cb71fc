"""Owns the CPU as a device: memory that counts once it is touched."""

import torch

from ..buffers import host_bytes
from ..errors import DeviceMemoryError, amount


class HostDevice:
    """The processor this process runs on."""

    label = "cpu"
    place = torch.device("cpu")
    alignment = 64
    steps_in_flight = 1

    def allocate(self, size: int, what: str, advice: str = "") -> torch.Tensor:
        """Return `size` zero bytes. Raises DeviceMemoryError naming `what`."""
        try:
            return host_bytes(size)
        except MemoryError:
            hint = f"; {advice}" if advice else ""
            raise DeviceMemoryError(f"no memory for {what} of {amount(size)}{hint}") from None

    def read_bandwidth(self, seconds: float) -> float | None:
        """Return None: the library knows how to read with all its threads."""
        return None

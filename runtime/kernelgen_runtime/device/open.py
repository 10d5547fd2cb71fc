"""Owns making the device of a choice."""

from .choose import Choice
from .cuda import CudaDevice
from .host import HostDevice


def open_device(choice: Choice) -> HostDevice | CudaDevice:
    """Return the device that `choice` names; `torch.cuda` is touched for a GPU only."""
    if choice.gpu is None:
        return HostDevice()
    from .torch_cuda import TorchCuda

    return CudaDevice(TorchCuda(choice.gpu))

"""Owns every error the runtime raises on purpose, and how untrusted text is shown in one."""

from collections.abc import Sequence

MAX_PROBLEMS = 20


class KernelgenRuntimeError(Exception):
    """Something a user, a file or this machine caused; the message says what to do next."""

    exit_code = 2


class ArtifactError(KernelgenRuntimeError):
    """The build folder or wheel cannot be used: missing, damaged, or of another schema or abi."""

    exit_code = 3


class NoArtifactError(ArtifactError):
    """The path that was given holds no build: a mistake of the command line."""

    exit_code = 2


class UnsupportedCpuError(KernelgenRuntimeError):
    """This processor lacks the instructions that every library of the artifact needs."""

    exit_code = 3


class UnsupportedGpuError(KernelgenRuntimeError):
    """No library of the artifact runs on the device that was asked for."""

    exit_code = 3


class NoDeviceError(KernelgenRuntimeError):
    """The artifact needs a GPU and none can be used here."""

    exit_code = 4


class WeightsError(KernelgenRuntimeError):
    """The checkpoint is damaged or does not hold what the manifest asks for."""


class UnsupportedWeightsError(KernelgenRuntimeError):
    """The checkpoint is of a format that is never read (pickle)."""

    exit_code = 3


class CapacityError(KernelgenRuntimeError):
    """A size that was asked for does not fit the artifact or the memory given to the cache."""


class DeviceMemoryError(CapacityError):
    """The device has too little memory; the message says how much is missing and what helps."""


class RequestError(KernelgenRuntimeError):
    """A prompt or a sampling parameter is not usable; other requests are not touched."""


class TextError(KernelgenRuntimeError):
    """Tokenizer, chat template or their configuration cannot be used."""


class LaunchError(KernelgenRuntimeError):
    """The library refused a buffer or a step."""

    exit_code = 1


def shown(value: object, limit: int = 80) -> str:
    """Return a one-line, bounded, printable form of an untrusted `value`."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    # Slicing first keeps the cost bounded: repr of a megabyte string would be built in full.
    text = ascii(value[: limit + 1]) if isinstance(value, str) else ascii(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def amount(size: int) -> str:
    """Return `size` bytes for a reader: 10⁹ bytes are a GB."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(size) >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} bytes"


def listing(title: str, problems: Sequence[str], limit: int = MAX_PROBLEMS) -> str:
    """Return `title`, then at most `limit` problems, one a line, and the count of the rest."""
    lines = [title + ":", *(f"  {problem}" for problem in problems[:limit])]
    if len(problems) > limit:
        lines.append(f"  … and {len(problems) - limit} more")
    return "\n".join(lines)

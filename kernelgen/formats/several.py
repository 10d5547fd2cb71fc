"""Owns the refusal of checkpoints whose tensors of several matrices are quantised already."""

from __future__ import annotations

from collections.abc import Iterable

from kernelgen.core.errors import UnsupportedError
from kernelgen.formats.announcement import WHERE, Announcement
from kernelgen.formats.stored import PLAIN, Header

_SAID = "a tensor of several matrices, which is only read plainly"


def refuse_several(
    tensors: Iterable[str],
    announcement: Announcement | None,
    header: Header | None,
) -> None:
    """Nothing where all of `tensors` (checkpoint names, each with several matrices) are plain.

    `UnsupportedError` names the first that is quantised, by the header or where there is none by
    the announcement. Plain ones may be quantised when they are loaded.
    """
    for name in dict.fromkeys(tensors):
        module = name.removesuffix(".weight")
        if _quantised(name, module, announcement, header):
            raise UnsupportedError(
                f"{module} is quantised, {_SAID}",
                where=WHERE,
                allowed="a config that leaves it out, and BF16, F16 or F32 in the checkpoint",
            )


def _quantised(
    name: str, module: str, announcement: Announcement | None, header: Header | None
) -> bool:
    announced = announcement is not None and announcement.scheme(module) is not None
    if header is None:
        return announced
    if name in header:
        return header[name][0] not in PLAIN
    return announced or any(other.startswith((f"{module}.", f"{module}_")) for other in header)

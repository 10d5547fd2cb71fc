"""Owns the refusal of quantised tensors of several matrices: expert stacks, gate above up."""

from __future__ import annotations

from collections.abc import Iterable

from kernelgen.core.errors import UnsupportedError
from kernelgen.formats.announcement import WHERE, Announcement
from kernelgen.formats.online import Online
from kernelgen.formats.stored import PLAIN, Header

_SAID = "a tensor of several matrices, which is only read plainly"


def refuse_several(
    tensors: Iterable[str],
    announcement: Announcement | None,
    online: Online | None,
    header: Header | None,
) -> tuple[str, ...]:
    """Notes on `tensors` (checkpoint names, each with several matrices): all of them are plain.

    `UnsupportedError` names the first that is quantised, by the header or where there is none by
    the announcement, and the first that a target of the user's file matches.
    """
    names = tuple(dict.fromkeys(tensors))
    for name in names:
        module = name.removesuffix(".weight")
        if _quantised(name, module, announcement, header):
            raise UnsupportedError(
                f"{module} is quantised, {_SAID}",
                where=WHERE,
                allowed="a config that leaves it out, and BF16, F16 or F32 in the checkpoint",
            )
        for pattern, _ in online.targets if online is not None else ():
            if pattern.matches(module):
                raise UnsupportedError(f"{pattern.text} matches {module}, {_SAID}")
    if online is None or online.linear is None or not names:
        return ()
    return (f"{len(names)} tensors of several matrices stay plain, such as {names[0]}",)


def _quantised(
    name: str, module: str, announcement: Announcement | None, header: Header | None
) -> bool:
    announced = announcement is not None and announcement.scheme(module) is not None
    if header is None:
        return announced
    if name in header:
        return header[name][0] not in PLAIN
    return announced or any(other.startswith((f"{module}.", f"{module}_")) for other in header)

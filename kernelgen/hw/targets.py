"""Owns the list of targets and how `--target` is read."""

from __future__ import annotations

from kernelgen.core.errors import UnsupportedError, quote
from kernelgen.hw import cpu, sm_80, sm_89, sm_90, sm_100, sm_103, sm_120
from kernelgen.hw.device import Device

# In each module the first device is the default of its SM.
_BY_SM: dict[str, tuple[Device, ...]] = {
    module.DEVICES[0].sm_name: module.DEVICES
    for module in (cpu, sm_80, sm_89, sm_90, sm_100, sm_103, sm_120)
}


def devices() -> tuple[Device, ...]:
    """Every device there is; the first one of each SM is its default."""
    return tuple(device for group in _BY_SM.values() for device in group)


def parse_target(text: str) -> Device:
    """The device behind "cpu", "sm_90" (its default device) or "sm_90:h200".

    `UnsupportedError` for anything else, listing what exists.
    """
    sm_name, colon, name = text.strip().lower().partition(":")
    group = _BY_SM.get(sm_name)
    if group is None:
        raise UnsupportedError(
            f"target {quote(text)} is not known", where="--target", allowed=", ".join(_BY_SM)
        )
    if not colon:
        return group[0]
    for device in group:
        if device.name == name:
            return device
    raise UnsupportedError(
        f"{sm_name} has no device {quote(name)}",
        where="--target",
        allowed=", ".join(device.target for device in group),
    )


def default_note(text: str) -> str:
    """What to tell the user about a device that the target did not name; empty if it did."""
    device = parse_target(text)
    if device.is_cpu or ":" in text:
        return ""
    others = [d.target for d in _BY_SM[device.sm_name][1:]]
    also = f" (also: {', '.join(others)})" if others else ""
    return f"{text.strip().lower()} means {device.target}, {device.label}{also}"


def device_of_driver_name(name: str) -> Device | None:
    """The device that the driver calls `name`; None when no description fits."""
    wanted = name.strip().lower()
    for device in devices():
        if wanted in (known.lower() for known in device.driver_names):
            return device
    return None

"""Owns how numbers are written for people: bytes, counts and times in three digits."""

from __future__ import annotations

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
_COUNTS = ("", "k", "M", "G", "T", "P")


def bytes_text(count: float) -> str:
    """ "98.4 MB": decimal units, as bandwidths are."""
    return _scaled(count, _BYTES)


def count_text(count: float) -> str:
    """ "135 M"."""
    return _scaled(count, _COUNTS).rstrip()


def us_text(us: float) -> str:
    """ "4.5 µs", "3.46 ms", "1.2 s"."""
    return _scaled(us, ("µs", "ms", "s"))


def percent_text(share: float) -> str:
    """ "87%"; one digit more below 10%, and never a rounded zero."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{share:.0%}" if share >= 0.0995 or share == 0 else f"{share:.1%}"


def _scaled(value: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if abs(value) < 999.5:
            return f"{_three_digits(value)} {unit}"
        value /= 1000
    return f"{_three_digits(value)} {units[-1]}"


def _three_digits(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"

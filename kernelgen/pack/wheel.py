"""Owns the wheel file format: metadata, record and archive, byte-identical for equal input."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kernelgen.core.errors import UsageError, quote
from kernelgen.core.files import write_atomic

# The oldest time that a zip archive can hold. Nothing in a wheel depends on when it was made.
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_VERSION = re.compile(
    r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?"
)


@dataclass(frozen=True)
class WheelMeta:
    """What a wheel says about itself; `scripts` maps a command to "package.module:function".

    `platform` is the last part of the tag, e.g. "manylinux_2_34_x86_64".
    """

    name: str
    version: str
    summary: str
    platform: str
    requires: tuple[str, ...] = ()
    requires_python: str = ">=3.11"
    scripts: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    license_text: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"name {quote(self.name)} cannot name a wheel",
                allowed="ASCII letters, digits, and . _ - inside, at most 100",
            )
        if not _VERSION.fullmatch(self.version) or len(self.version) > 64:
            raise UsageError(
                f"version {quote(self.version)} cannot be a wheel's", allowed="like 1.2.3, 1.0rc1"
            )
        lines = (self.summary, self.platform, *self.requires, *self.scripts, *self.scripts.values())
        for line in lines:
            if not line.isprintable():
                raise UsageError(f"{quote(line)} cannot be a line of metadata")

    @property
    def distribution(self) -> str:
        """The name as file names spell it."""
        return re.sub(r"[-_.]+", "_", self.name).lower()

    @property
    def tag(self) -> str:
        """Works with any Python 3: the libraries know nothing of CPython's ABI."""
        return f"py3-none-{self.platform}"

    @property
    def filename(self) -> str:
        """File name of the wheel."""
        return f"{self.distribution}-{self.version}-{self.tag}.whl"


def write_wheel(meta: WheelMeta, files: Mapping[str, bytes], folder: Path) -> Path:
    """Writes the wheel of `files` (archive path → content) into `folder`, whole or not at all."""
    return write_atomic(folder / meta.filename, wheel_bytes(meta, files))


def wheel_bytes(meta: WheelMeta, files: Mapping[str, bytes]) -> bytes:
    """The wheel as bytes: files sorted by path, then the dist-info folder, RECORD at the end."""
    info = f"{meta.distribution}-{meta.version}.dist-info"
    extra = {f"{info}/METADATA": _metadata(meta), f"{info}/WHEEL": _wheel(meta)}
    if meta.scripts:
        extra[f"{info}/entry_points.txt"] = _entry_points(meta)
    if meta.license_text:
        extra[f"{info}/licenses/LICENSE"] = meta.license_text.encode()
    ordered = [*sorted(files.items()), *sorted(extra.items())]
    for path, _ in ordered:
        _check_path(path)
    record = _record([*ordered], f"{info}/RECORD")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in [*ordered, (f"{info}/RECORD", record)]:
            archive.writestr(_member(path), content, compresslevel=6)
    return buffer.getvalue()


def _member(path: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(path, _TIMESTAMP)
    member.create_system = 3  # Unix, so that the permission bits count
    member.external_attr = (0o100755 if path.endswith(".so") else 0o100644) << 16
    member.compress_type = zipfile.ZIP_DEFLATED
    return member


def _check_path(path: str) -> None:
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise UsageError(f"{quote(path)} cannot be a path inside a wheel")


def _record(files: list[tuple[str, bytes]], own_path: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for path, content in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([path, f"sha256={digest}", len(content)])
    rows.writerow([own_path, "", ""])
    return text.getvalue().encode()


def _metadata(meta: WheelMeta) -> bytes:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {meta.name}",
        f"Version: {meta.version}",
        f"Summary: {meta.summary}",
    ]
    if meta.license_text:
        lines += ["License-Expression: Apache-2.0", "License-File: LICENSE"]
    lines += [f"Requires-Python: {meta.requires_python}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in meta.requires]
    if meta.description:
        lines += ["Description-Content-Type: text/markdown", "", meta.description.rstrip()]
    return ("\n".join(lines) + "\n").encode()


def _wheel(meta: WheelMeta) -> bytes:
    lines = (
        "Wheel-Version: 1.0",
        "Generator: kernelgen",
        "Root-Is-Purelib: false",
        f"Tag: {meta.tag}",
    )
    return ("\n".join(lines) + "\n").encode()


def _entry_points(meta: WheelMeta) -> bytes:
    lines = [f"{command} = {target}" for command, target in sorted(meta.scripts.items())]
    return ("\n".join(["[console_scripts]", *lines]) + "\n").encode()

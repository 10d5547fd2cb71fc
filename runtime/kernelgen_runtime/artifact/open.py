"""Owns finding manifest and libraries in a build folder, an installed package or a wheel."""

import shutil
import stat
import tempfile
import weakref
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import ArtifactError, NoArtifactError, shown
from .manifest import Library, Manifest
from .read import MAX_MANIFEST_BYTES, read_manifests

MAX_LIBRARY_BYTES = 1 << 30
_MANIFEST = "manifest.json"
# What zipfile raises for a damaged, encrypted or exotically compressed archive.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError)


@dataclass(frozen=True)
class Artifact:
    """A checked manifest for each target, and the folder their paths are relative to.

    `lifetime` is set for a wheel: the folder is a private temporary one that goes with this object.
    """

    manifests: tuple[Manifest, ...]
    folder: Path
    lifetime: object = None

    def library_path(self, library: Library) -> Path:
        """Return the file of `library`. Raises ArtifactError where it is missing."""
        path = self.folder / library.path
        if not path.is_file():
            raise ArtifactError(f"{path}: missing, though {_MANIFEST} names it")
        return path


def open_artifact(path: str | Path) -> Artifact:
    """Open a build folder, an installed package folder or a `.whl` file. Raises ArtifactError."""
    if not isinstance(path, str | Path):
        raise NoArtifactError(f"artifact: must be a folder or a .whl file, is {shown(path)}")
    path = Path(path)
    if path.is_file() and path.suffix == ".whl":
        return _open_wheel(path)
    if (path / _MANIFEST).is_file():
        return Artifact(read_manifests(path / _MANIFEST), path)
    if not path.exists():
        raise NoArtifactError(f"{path}: no such file or folder")
    if path.is_file():
        raise NoArtifactError(f"{path}: neither a folder nor a .whl file")
    near = sorted(p.parent.name for p in path.glob(f"*/{_MANIFEST}"))[:5]
    hint = f"; did you mean {', '.join(str(path / name) for name in near)}?" if near else ""
    raise NoArtifactError(f"{path}: holds no {_MANIFEST}{hint}")


def _open_wheel(path: Path) -> Artifact:
    folder = Path(tempfile.mkdtemp(prefix="kernelgen-"))
    try:
        with zipfile.ZipFile(path) as wheel:
            package = _package_folder(wheel, path)
            _extract(wheel, package / _MANIFEST, folder / _MANIFEST, MAX_MANIFEST_BYTES)
            manifests = read_manifests(folder / _MANIFEST)
            for library in [library for m in manifests for library in m.libraries]:
                target = folder / library.path
                target.parent.mkdir(parents=True, exist_ok=True)
                _extract(wheel, package / library.path, target, MAX_LIBRARY_BYTES)
    except _DAMAGED as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ArtifactError(f"{path}: not a readable wheel ({shown(str(error))})") from None
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    artifact = Artifact(manifests, folder, lifetime := _Lifetime())
    weakref.finalize(lifetime, shutil.rmtree, folder, ignore_errors=True)
    return artifact


class _Lifetime:
    """Ends with the artifact that holds it."""


def _package_folder(wheel: zipfile.ZipFile, path: Path) -> PurePosixPath:
    names = [PurePosixPath(name) for name in wheel.namelist()]
    found = [name.parent for name in names if name.name == _MANIFEST and len(name.parts) == 2]
    if len(found) != 1:
        raise ArtifactError(f"{path}: must hold one <package>/{_MANIFEST}, holds {len(found)}")
    return found[0]


def _extract(wheel: zipfile.ZipFile, name: PurePosixPath, target: Path, limit: int) -> None:
    """Copy member `name` to `target`, a name of ours: the archive chooses no path and no mode."""
    try:
        info = wheel.getinfo(str(name))
    except KeyError:
        raise ArtifactError(f"{wheel.filename}: {name} is missing") from None
    if stat.S_ISLNK(info.external_attr >> 16):
        raise ArtifactError(f"{wheel.filename}: {name} is a link")
    left = limit
    with wheel.open(info) as source, target.open("xb") as out:
        while chunk := source.read(1 << 20):
            left -= len(chunk)
            if left < 0:
                raise ArtifactError(f"{wheel.filename}: {name} is larger than {limit} bytes")
            out.write(chunk)

"""Owns the listening socket: bound before anything is loaded, so that a busy port fails at once."""

import os
import socket
import stat
from pathlib import Path

from .arguments import ArgumentsError

BACKLOG = 2048


def bind(host: str, port: int, uds: str | None) -> socket.socket:
    """Return a bound, listening socket. Raises ArgumentsError where it cannot be had."""
    if uds is not None:
        return _bind_path(Path(uds))
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ArgumentsError(f"--host {host}: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ArgumentsError(
            f"port {port} of {host} cannot be used ({error.strerror}); choose another with --port"
        ) from None
    return listener


def _bind_path(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _is_answered(path):
            path.unlink()  # left behind by a server that was killed
        listener.bind(str(path))
        os.chmod(path, 0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ArgumentsError(f"--uds {path}: cannot be used ({error.strerror or error})") from None
    return listener


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def address_of(listener: socket.socket, host: str, uds: str | None, secure: bool) -> str:
    """Return the URL of a listening socket."""
    if uds is not None:
        return f"unix:{uds}"
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{name}:{listener.getsockname()[1]}"

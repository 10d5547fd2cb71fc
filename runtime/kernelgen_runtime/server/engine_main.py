"""Owns the engine process: its signals, its start, and the code that it ends with."""

import time

_BEGUN = time.perf_counter()  # before the imports that take long

import argparse  # noqa: E402
import contextlib  # noqa: E402
import ctypes  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Serve the connection whose file descriptor is `--fd`; return the exit code."""
    # The API process decides when to end: Ctrl-C reaches the whole group of a terminal.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    _die_with(options.parent)
    connection = socket.socket(fileno=options.fd)
    from .engine_start import serve

    return serve(connection, _BEGUN)


def _die_with(parent: int) -> None:
    """Ask for SIGKILL when the parent dies, however it dies; where that has happened, end."""
    # Where there is no such call, the end of the connection says it a little later.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of libraries must not hold the end up

"""Owns the engine process as its parent sees it: started, watched, ended; never left behind."""

import os
import signal
import socket
import subprocess
import sys

CLOSE_SECONDS = 3.0


class EngineProcess:
    """A running engine process. `socket` is connected to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            module = f"{__package__}.engine_main"
            fd, parent = str(theirs.fileno()), str(os.getpid())
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, "--fd", fd, "--parent", parent],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # out of reach of the terminal's Ctrl-C: the parent decides
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self.socket = ours

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None while it runs; minus the signal that ended it."""
        return self._process.poll()

    def kill(self) -> None:
        """End it now."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def close(self, seconds: float = CLOSE_SECONDS) -> int:
        """Wait for its end, for up to `seconds`; then kill it. Returns the exit code.

        It ends by itself once the connection is closed.
        """
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        return self._process.returncode

"""Owns the clocks of a start: since the process began, since the imports, and of each part."""

import os
import resource
import time


class Laps:
    """Seconds of each part of a start, one after the other, from when this was made.

    `begun` and the parts lie on the `time.perf_counter` axis. A part may be named again.
    """

    def __init__(self) -> None:
        self.begun = self._last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def end(self, part: str) -> None:
        """End `part`, which has lasted since the end of the one before."""
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now


def process_start() -> float:
    """Return when this process began, on the `time.perf_counter` axis (10 ms steps).

    Where /proc does not tell, the time of this call is returned.
    """
    now = time.perf_counter()
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            # The name in parentheses may hold spaces; fields are counted after it.
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - age


def peak_host_bytes() -> int:
    """Return the most memory that this process has ever had in use, shared libraries included."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return 1024 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    # Not asked first: it begins with the peak of the process that this one was started from.
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def default_threads() -> int:
    """Return the processors this process may use, control group limits included."""
    count = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return min(count, 256)

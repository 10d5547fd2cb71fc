"""Owns the two clocks of a start: since the process began, and since the imports were done."""

import os
import time


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

"""Owns clusters under Triton's interpreter: blocks take turns, and pass at every barrier.

The interpreter runs one block after another. Blocks of a cluster wait for each other, so each has a
thread here, of which one runs at a time: it passes the turn on where it waits, and has it again
when all others wait at the same place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

_BARRIER, _SIZE, _SEND, _SENT = "barrier.cluster.", "%dynamic_smem_size", "mapa.", "ld.shared."
_RUNNING: list[_Cluster] = []


def run_clusters(
    function: Callable[..., None],
    arguments: Mapping[str, Any],
    grid: tuple[int, int, int],
    size: int,
    exchange_bytes: int,
    interpreter: Any,
) -> None:
    """Run all blocks of a grid, `size` neighbours in x at a time. `exchange_bytes`: of each."""
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(*grid)
    for first, y, z in product(range(0, grid[0], size), range(grid[1]), range(grid[2])):
        at = partial(_at, builder, y, z)
        cluster = _Cluster(size, exchange_bytes, at, first)
        _RUNNING.append(cluster)
        try:
            cluster.run(lambda: function(**arguments))
        finally:
            _RUNNING.pop()


def _at(builder: Any, y: int, z: int, x: int) -> None:
    builder.set_grid_idx(x, y, z)


def cluster_assembly(text: str, values: list[Any]) -> Any:
    """What one instruction of the exchange leaves (numpy), or None for assembly of other kinds."""
    import numpy as np

    if text.startswith(_BARRIER):
        if ".wait." in text:
            _RUNNING[-1].wait()
        return np.zeros(1, np.int32)
    if _SIZE in text:
        return np.array([_RUNNING[-1].exchange_bytes], np.int32)
    if _SEND in text:
        place, block, value, *wanted = values
        if wanted:
            kept = wanted[0] != 0
            place, block, value = place[kept], block[kept], value[kept]
        _RUNNING[-1].send(place, block, value)
        return np.zeros(values[0].shape, np.int32)
    if text.startswith(_SENT):
        return _RUNNING[-1].sent(values[0])
    return None


class _Cluster:
    """Blocks from `first` on, their exchange memories, and whose turn it is."""

    def __init__(
        self, size: int, exchange_bytes: int, at: Callable[[int], None], first: int
    ) -> None:
        import numpy as np

        self.exchange_bytes = exchange_bytes
        self._memory = np.full((size, exchange_bytes // 4), np.nan, np.float32)
        self._size, self._at, self._first = size, at, first
        self._turn, self._changed = 0, threading.Condition()
        self._left = set(range(size))
        self._error: BaseException | None = None

    def run(self, block: Callable[[], None]) -> None:
        """All blocks to their end; the first error of any of them."""
        threads = [
            threading.Thread(target=self._live, args=(number, block))
            for number in range(self._size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Let all others come to this barrier first."""
        own = self._turn
        self._pass_on()
        self._await(own)

    def send(self, place: Any, block: Any, value: Any) -> None:
        """Store where `place` (bytes) of the memory of `block` is."""
        self._memory[block, place // 4] = value

    def sent(self, place: Any) -> Any:
        """What lies in the own memory; NaN where nobody has stored."""
        return self._memory[self._turn, place // 4]

    def _live(self, number: int, block: Callable[[], None]) -> None:
        try:
            self._await(number)
            if self._error is None:
                block()
        except BaseException as error:
            self._error = self._error or error
        finally:
            self._left.discard(number)
            self._pass_on()

    def _await(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == number)
        if self._error is not None:
            raise RuntimeError("another block of the cluster has failed")
        self._at(self._first + number)

    def _pass_on(self) -> None:
        """The turn to the next block that has not ended."""
        with self._changed:
            later = [self._turn + i for i in range(1, self._size + 1)]
            self._turn = next((n % self._size for n in later if n % self._size in self._left), -1)
            self._changed.notify_all()

"""Owns the cache of a scene as a reference sees it: keys and values of tokens, in their pages."""

from __future__ import annotations

from typing import Any

from kernelgen.ops.step import DenseCache
from kernelgen.tune.stage import Scene
from kernelgen.tune.step_data import PAGE

Tensor = Any


class Entries:
    """Keys and values of the first copy's layer, in the pages of the first set."""

    def __init__(self, scene: Scene) -> None:
        import torch

        layer = scene.layer(0)
        assert layer is not None and scene.pool is not None
        facts = scene.model.layer[layer]
        self.scene, self.facts = scene, facts
        kind = getattr(torch, facts.dtype)
        size = PAGE * facts.kv_heads * facts.head_dim
        start = facts.offset_bytes // kind.itemsize
        part = scene.pool.view(kind)[:, start : start + 2 * size]
        # As integers: torch picks and fills no 8-bit floats.
        self._kind, bits = kind, {1: torch.uint8, 2: torch.int16, 4: torch.int32}[kind.itemsize]
        self.entries = part.view(bits).view(-1, 2, facts.kv_heads, PAGE, facts.head_dim)
        each = -(-scene.requests.length // PAGE)
        self.table = torch.from_numpy(scene.pages[0].reshape(-1, each).astype("int64"))

    def _places(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        at = tokens.cpu().numpy()
        positions = torch.from_numpy(self.scene.requests.positions[at].astype("int64"))
        owners = torch.from_numpy(self.scene.requests.owners[at].astype("int64"))
        device = self.scene.stage.device
        pages = self.table[owners, positions // PAGE]
        return pages.to(device), (positions % PAGE).to(device)

    def write(self, tokens: Tensor, value: float) -> None:
        """Fills keys and values of tokens."""
        import torch

        pages, at = self._places(tokens)
        one = torch.tensor([value]).to(self._kind).view(self.entries.dtype)
        self.entries[pages, :, :, at] = int(one)

    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens: `[n, kv_heads, D]`."""
        pages, at = self._places(tokens)
        both = self.entries[pages, :, :, at].view(self._kind)
        return both[:, 0], both[:, 1]

    def dense(self, tokens: Tensor) -> DenseCache:
        """All entries of the requests that the tokens belong to, in float64."""
        owners = dict.fromkeys(self.scene.requests.owners[tokens.cpu().numpy()].tolist())
        length = self.scene.requests.length
        keys, values = [], []
        for owner in owners:
            pages = self.table[owner].to(self.scene.stage.device)
            held = self.entries[pages].view(self._kind).double()
            both = held.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]
            keys.append(both[0])
            values.append(both[1])
        return DenseCache(keys, values)

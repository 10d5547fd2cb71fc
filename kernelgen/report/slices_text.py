"""Owns the slice map as plain text: equal layers are one line, with a column for each rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelgen.pack.slices import Rank, RankWeight, Slice, kinds_of_weights, starred
from kernelgen.report.tables import aligned

MOST_RANKS = 8


def slices_text(source: str, ranks: Sequence[Rank]) -> str:
    """Which slice of which checkpoint tensor each rank gets, and what that adds up to."""
    tp, ep = 1 + max(r.tensor for r in ranks), 1 + max(r.expert for r in ranks)
    totals = (sum(s.elements for w in rank.weights for s in w.slices) for rank in ranks)
    lines = [
        f"{source}: slices of the checkpoint for {tp} tensor-parallel × {ep} expert-parallel ranks",
        f"  elements by rank: {', '.join(f'{total:,}' for total in totals)}",
    ]
    shown = ranks[:MOST_RANKS]
    if len(shown) < len(ranks):
        lines.append(f"  ranks 0 to {MOST_RANKS - 1} of {len(ranks)}; --json has all")
    head = ("weight", "cut", "tensor", *(f"tp {r.tensor}, ep {r.expert}" for r in shown))
    rows = [row for name, found in kinds_of_weights(shown) for row in _rows(name, found)]
    return "\n".join([*lines, "", *aligned([head, *rows])])


def _rows(name: str, found: Sequence[RankWeight]) -> Iterator[tuple[str, ...]]:
    """A row for each part of a packed matrix; of tensors of one expert each the first one's."""
    for part in dict.fromkeys(piece.part for piece in found[0].slices):
        of_ranks = [[p for p in weight.slices if p.part == part] for weight in found]
        first = of_ranks[0][0]
        more = f" and {len(of_ranks[0]) - 1} more" if len(of_ranks[0]) > 1 else ""
        cells = (_box(pieces) for pieces in of_ranks)
        yield (name, found[0].cut, starred(first.tensor) + more, *cells)


def _box(pieces: Sequence[Slice]) -> str:
    """ "[0:64, :]": the whole of an axis is a colon."""
    box = zip(pieces[0].box, pieces[0].view, strict=True)
    ranges = (":" if r == (0, size) else f"{r[0]}:{r[1]}" for r, size in box)
    return f"[{', '.join(ranges)}]"

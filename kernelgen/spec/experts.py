"""Owns routed experts as data: how tokens choose among them, what each is, where each lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise


class Scoring(Enum):
    """What a router makes of its logits; values are the names that configs use."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"
    SQRT_SOFTPLUS = "sqrtsoftplus"


REMOTE = -1
"""local number of an expert that lives on another rank"""


@dataclass(frozen=True)
class RouterSpec:
    """Which experts a token goes to, and with what weight.

    Of the scores the `top_k` largest are chosen, of equal ones the lower number. With groups, those
    of the `kept_groups` groups whose `group_top` best scores sum up highest. A `bias` is added for
    the choice alone. Weights are scores over their sum (`renormalise`), times `scale`.
    """

    experts: int
    top_k: int
    scoring: Scoring = Scoring.SOFTMAX
    bias: bool = False
    groups: int = 1
    kept_groups: int = 1
    group_top: int = 1
    renormalise: bool = True
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.experts:
            raise ValueError(f"{self.top_k} of {self.experts} experts cannot be chosen")
        if self.experts % self.groups or not 1 <= self.kept_groups <= self.groups:
            raise ValueError(f"{self.kept_groups} of {self.groups} groups of {self.experts}")
        each = self.experts // self.groups
        if self.top_k > self.kept_groups * each or not 1 <= self.group_top <= each:
            raise ValueError(f"groups of {each}, of which {self.kept_groups} are kept, are too few")


@dataclass(frozen=True)
class ExpertMap:
    """Where the experts of a layer live: a rank may hold several, and several ranks the same one.

    `places[g]` lists the (rank, local number) of every copy of expert g.
    """

    places: tuple[tuple[tuple[int, int], ...], ...]

    def __post_init__(self) -> None:
        held: dict[int, set[int]] = {}
        for g, copies in enumerate(self.places):
            if not copies:
                raise ValueError(f"expert {g} lives nowhere")
            if len({rank for rank, _ in copies}) < len(copies):
                raise ValueError(f"expert {g} lives twice on one rank")
            for rank, local in copies:
                numbers = held.setdefault(rank, set())
                if local in numbers:
                    raise ValueError(f"rank {rank} has two experts number {local}")
                numbers.add(local)
        for rank, numbers in held.items():
            if numbers != set(range(len(numbers))):
                raise ValueError(f"the experts of rank {rank} are not numbered from 0 on")

    @staticmethod
    def of_ranks(held: Sequence[Sequence[int]]) -> ExpertMap:
        """`held[rank]`: the experts of a rank in the order of their local numbers."""
        count = max((g for numbers in held for g in numbers), default=-1) + 1
        places: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        for rank, numbers in enumerate(held):
            for local, g in enumerate(numbers):
                places[g].append((rank, local))
        return ExpertMap(tuple(map(tuple, places)))

    @staticmethod
    def even(experts: int, ranks: int) -> ExpertMap:
        """Consecutive experts on each rank; the first ones hold one more where they must."""
        cuts = [-(-experts * r // ranks) for r in range(ranks + 1)]
        return ExpertMap.of_ranks([range(a, b) for a, b in pairwise(cuts)])

    @property
    def experts(self) -> int:
        """Experts of the model."""
        return len(self.places)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank that holds an expert."""
        return tuple(sorted({rank for copies in self.places for rank, _ in copies}))

    def local(self, rank: int) -> tuple[int, ...]:
        """For each expert its number on a rank, `REMOTE` where another one serves it.

        Of several copies the ranks take turns by the expert's number, so that each token is served
        once.
        """
        found = []
        for g, copies in enumerate(self.places):
            owner, number = sorted(copies)[g % len(copies)]
            found.append(number if owner == rank else REMOTE)
        return tuple(found)

    def held(self, rank: int) -> tuple[int, ...]:
        """The experts of a rank by local number: what it loads."""
        numbers = {
            local: g for g, copies in enumerate(self.places) for r, local in copies if r == rank
        }
        return tuple(numbers[local] for local in sorted(numbers))

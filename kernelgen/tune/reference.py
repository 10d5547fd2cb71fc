"""Owns what a candidate has to have written: exact values with bounds, computed on the GPU once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelgen.formats import WeightFormat
from kernelgen.ir.graph import Node, Role, Value
from kernelgen.ir.op import Trait
from kernelgen.ir.types import Dim
from kernelgen.ops.step import StepView
from kernelgen.tune.entries import Entries
from kernelgen.tune.packed_weights import meant
from kernelgen.tune.stage import Scene, poisoned
from kernelgen.tune.step_data import GREEDY, KEYED, Choosing, seed_of
from kernelgen.tune.verdict import Verdict, compared, evaluated
from kernelgen.verify.bounded import Bounded
from kernelgen.verify.sampling import acceptable

_ROWS = 64
"""rows that are compared: a tile that computes one row wrong computes others wrong too"""
_ATTENDING = 16
"""the same for attention, whose reference takes a row at a time"""
_CHOSEN = 3
"""logit rows whose choice is compared where noise has to be computed for a whole vocabulary"""

Tensor = Any


@dataclass
class Reference:
    """The right answer for the checked rows of one scene, in one way of choosing tokens."""

    scene: Scene
    choosing: Choosing
    args: Tensor
    rows: Mapping[Dim, Tensor]
    """row numbers that are compared, of token rows and of logit rows"""
    values: Mapping[str, Bounded]
    unrounded: Mapping[str, Bounded]
    """narrow results before their last rounding"""
    chosen: Mapping[int, set[int]] = field(default_factory=dict)
    """logit row → ids that are right"""

    def poison(self) -> None:
        """Nothing of an earlier candidate may count: outputs, and entries that are written."""
        for name, tensors in self.scene.rows.items():
            if name in self.scene.block.producer:
                poisoned(tensors[0])
        for node in self.scene.block.nodes:
            if node.op.has(Trait.STATE_WRITE):
                entries = Entries(self.scene)
                entries.write(self.rows[Dim.T], float("nan"))

    def judge(self) -> Verdict:
        """Compares what lies in the outputs now."""
        verdicts = [self._values(name) for name in self._outputs()]
        verdicts += [
            self._written(n) for n in self.scene.block.nodes if n.op.has(Trait.STATE_WRITE)
        ]
        verdicts += [self._choice(n) for n in self.scene.block.nodes if n.op.has(Trait.SAMPLE)]
        return max(verdicts, key=lambda v: v.share, default=Verdict(0.0))

    def _outputs(self) -> list[str]:
        block = self.scene.block
        sampled = {o for n in block.nodes if n.op.has(Trait.SAMPLE) for o in n.outputs}
        return [n for n in self.scene.rows if n in block.producer and n not in sampled]

    def _values(self, name: str) -> Verdict:
        leading = self.scene.block.value[name].type.leading
        assert leading is not None
        found = self.scene.operand(name, 0)[self.rows[leading]].double()
        want = self.values[name]
        exact = self.unrounded.get(name)
        return compared(
            name,
            found,
            want.value.reshape(found.shape),
            want.error.reshape(found.shape),
            exact and Bounded(exact.value.reshape(found.shape), exact.error.reshape(found.shape)),
        )

    def _written(self, node: Node) -> Verdict:
        """New entries of the cache."""
        entries = Entries(self.scene)
        want = self.values[node.outputs[0]]
        tokens = self.rows[Dim.T]
        keys, values = entries.read(tokens)
        verdicts = []
        for what, found, side, off in (
            ("keys", keys, want.value.keys, want.error.keys),
            ("values", values, want.value.values, want.error.values),
        ):
            at = self.scene.requests.positions[tokens.cpu().numpy()]
            owners = _numbered(self.scene, tokens)
            right, bound = (_picked(s, owners, at) for s in (side, off))
            verdicts.append(compared(what, found.double(), right, bound))
        return max(verdicts, key=lambda v: v.share)

    def _choice(self, node: Node) -> Verdict:
        found = self.scene.operand(node.outputs[0], 0)
        wrong = [
            f"logit row {row} took {int(found[row])}, not {sorted(right)[:3]}"
            for row, right in self.chosen.items()
            if int(found[row]) not in right
        ]
        return Verdict(float("inf"), "; ".join(wrong[:2])) if wrong else Verdict(0.0)


def references(scene: Scene) -> tuple[Reference, ...]:
    """One for each way in which a step may ask for tokens: one, or two where any are chosen."""
    chooses = any(n.op.has(Trait.SAMPLE) for n in scene.block.nodes)
    return tuple(_reference(scene, c) for c in ((GREEDY, KEYED) if chooses else (GREEDY,)))


def _reference(scene: Scene, choosing: Choosing) -> Reference:
    import torch

    device = scene.stage.device
    rows = _rows(scene)
    with torch.device(device):
        view, outside = _outside(scene, rows, choosing)
        values, unrounded = evaluated(scene.block, outside, view)
        chosen = _choices(scene, values, view, rows)
    kept = {name: values[name] for name in values if _wanted(scene, name)}
    args = scene.step(choosing, wide=True)
    return Reference(scene, choosing, args, rows, kept, unrounded, chosen)


def _wanted(scene: Scene, name: str) -> bool:
    written = {o for n in scene.block.nodes if n.op.has(Trait.STATE_WRITE) for o in n.outputs}
    return name in written or (name in scene.rows and name in scene.block.producer)


def _rows(scene: Scene) -> dict[Dim, Tensor]:
    """Token rows and logit rows that are compared; tokens of the logit rows where there are any."""
    import torch

    attends = any(n.op.has(Trait.ATTENTION) for n in scene.block.nodes)
    most = _ATTENDING if attends else _ROWS
    wide = scene.wide
    logits = _some(len(wide.logit_tokens), most)
    reads_logits = any(v.type.leading is Dim.B for v in scene.block.values)
    tokens = np.array(wide.logit_tokens)[logits] if reads_logits else _some(wide.tokens, most)
    numbers = {Dim.T: tokens, Dim.B: logits}
    return {
        dim: torch.from_numpy(n.astype("int64")).to(scene.stage.device)
        for dim, n in numbers.items()
    }


def _some(count: int, most: int) -> Any:
    """All rows, or both ends and random ones between."""
    if count <= most:
        return np.arange(count)
    edge = most // 4
    between = np.random.default_rng(count).choice(
        np.arange(edge, count - edge), most - 2 * edge, replace=False
    )
    return np.concatenate([np.arange(edge), np.sort(between), np.arange(count - edge, count)])


def _outside(
    scene: Scene, rows: Mapping[Dim, Tensor], choosing: Choosing
) -> tuple[StepView, dict[str, Any]]:
    """Everything that no node computes, in float64, cut to the compared rows."""
    import torch

    device = scene.stage.device
    tokens, logits = rows[Dim.T], rows[Dim.B]
    at = tokens.cpu().numpy()
    count = len(logits)
    owners = _numbered(scene, tokens)
    steps = {
        "token_ids": torch.from_numpy(scene.token_ids[at].astype("int64")).to(device),
        "positions": torch.from_numpy(scene.requests.positions[at].astype("int64")).to(device),
        "rows": torch.tensor(owners, dtype=torch.int64, device=device),
        "logit_tokens": torch.arange(count, device=device),
        "sampling": torch.arange(count, device=device),
    }
    requests = scene.requests.owners[np.array(scene.wide.logit_tokens)[logits.cpu().numpy()]]
    ends = scene.requests.positions[np.array(scene.wide.logit_tokens)[logits.cpu().numpy()]]
    view = StepView(
        positions=steps["positions"],
        request=steps["rows"],
        temperature=[float(np.float32(choosing.temperature))] * count,
        top_k=[choosing.top_k] * count,
        top_p=[float(np.float32(choosing.top_p))] * count,
        seed=[seed_of(int(r)) for r in requests],
        position=[int(p) + 1 for p in ends],
    )
    outside: dict[str, Any] = {}
    for value in scene.block.values:
        if value.name in scene.block.producer:
            continue
        if value.role is Role.STEP:
            outside[value.name] = steps[value.name]
        elif value.role is Role.STATE:
            outside[value.name] = Entries(scene).dense(tokens)
        else:
            outside[value.name] = _exact(value, scene.operand(value.name, 0), rows)
    return view, outside


def _exact(value: Value, given: Tensor, rows: Mapping[Dim, Tensor]) -> Tensor:
    """What an operand means: float64, int64 where it holds numbers of things."""
    kind, leading = value.type.dtype, value.type.leading
    if isinstance(kind, WeightFormat):
        return meant(kind, [d for d in value.type.shape if isinstance(d, int)], given)
    cut = given if leading is None else given[rows[leading]]
    return cut.double() if given.is_floating_point() else cut.long()


def _numbered(scene: Scene, tokens: Tensor) -> list[int]:
    """The request of each compared token, numbered in order of appearance."""
    owners = scene.requests.owners[tokens.cpu().numpy()].tolist()
    numbers = {owner: i for i, owner in enumerate(dict.fromkeys(owners))}
    return [numbers[owner] for owner in owners]


def _picked(side: Sequence[Tensor], owners: Sequence[int], at: Any) -> Tensor:
    import torch

    return torch.stack([side[o][int(p)] for o, p in zip(owners, at, strict=True)])


def _choices(
    scene: Scene, values: Mapping[str, Bounded], view: StepView, rows: Mapping[Dim, Tensor]
) -> dict[int, set[int]]:
    """Right ids of a few logit rows; rows that nobody samples get −1."""
    found: dict[int, set[int]] = {}
    for node in scene.block.nodes:
        if not node.op.has(Trait.SAMPLE):
            continue
        logits = values[node.inputs[0]]
        numbers = rows[Dim.B].tolist()
        greedy = not any(view.temperature)
        last = len(scene.wide.logit_tokens) - 1
        for i in range(len(numbers)) if greedy else _some(len(numbers), _CHOSEN):
            if scene.group.phase != "decode" and numbers[i] != last:
                found[numbers[i]] = {-1}
                continue
            found[numbers[i]] = _acceptable(logits, view, int(i))
    return found


def _acceptable(logits: Bounded, view: StepView, row: int) -> set[int]:
    import torch

    value, error = logits.value[row], logits.error[row]
    if view.temperature[row] == 0:
        near = value + error >= (value - error).max()
        return set(torch.nonzero(near).flatten().tolist())
    with torch.device("cpu"):
        plain = StepView(
            positions=view.positions.cpu(),
            request=view.request.cpu(),
            temperature=view.temperature,
            top_k=view.top_k,
            top_p=view.top_p,
            seed=view.seed,
            position=view.position,
        )
        return acceptable(value.cpu(), error.cpu(), plain, row)

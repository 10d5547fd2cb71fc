"""Owns scalar expressions: what a pointwise op computes for one element, as data that printers
turn into code."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Function:
    """One scalar function: how many arguments it takes, what it costs, what it means."""

    arity: int
    flops: int
    meaning: Callable[..., Any]
    """Evaluates on torch tensors (any float dtype)."""


def _torch(name: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        import torch

        return getattr(torch, name)(*args)

    return call


FUNCTIONS: dict[str, Function] = {
    "add": Function(2, 1, lambda a, b: a + b),
    "sub": Function(2, 1, lambda a, b: a - b),
    "mul": Function(2, 1, lambda a, b: a * b),
    "div": Function(2, 4, lambda a, b: a / b),
    "neg": Function(1, 1, lambda a: -a),
    "exp": Function(1, 10, _torch("exp")),
    "rsqrt": Function(1, 8, _torch("rsqrt")),
    "tanh": Function(1, 16, _torch("tanh")),
    "sigmoid": Function(1, 14, _torch("sigmoid")),
    "silu": Function(1, 15, lambda a: a * _torch("sigmoid")(a)),
    "max": Function(2, 1, _torch("maximum")),
    "min": Function(2, 1, _torch("minimum")),
}
"""Adding an entry here needs one line in each backend's expression printer, nothing else."""


@dataclass(frozen=True)
class Expr:
    """A node of an expression tree: `arg` (input number), `const` (value), or a function of
    FUNCTIONS."""

    fn: str
    args: tuple[Expr, ...] = ()
    index: int = 0
    value: float = 0.0

    def __add__(self, other: Expr | float) -> Expr:
        return call("add", self, other)

    def __sub__(self, other: Expr | float) -> Expr:
        return call("sub", self, other)

    def __mul__(self, other: Expr | float) -> Expr:
        return call("mul", self, other)

    def __truediv__(self, other: Expr | float) -> Expr:
        return call("div", self, other)

    def __str__(self) -> str:
        if self.fn == "arg":
            return f"a{self.index}"
        if self.fn == "const":
            return repr(self.value)
        return f"{self.fn}({', '.join(str(a) for a in self.args)})"

    @property
    def flops(self) -> int:
        """Operations for one element."""
        own = FUNCTIONS[self.fn].flops if self.fn in FUNCTIONS else 0
        return own + sum(a.flops for a in self.args)

    def evaluate(self, inputs: Sequence[Any]) -> Any:
        """The value on torch tensors, in their own precision."""
        if self.fn == "arg":
            return inputs[self.index]
        if self.fn == "const":
            import torch

            like = inputs[0]
            return torch.tensor(self.value, dtype=like.dtype)
        return FUNCTIONS[self.fn].meaning(*(a.evaluate(inputs) for a in self.args))

    def to_json(self) -> list[Any]:
        """Nested lists: `["arg", 0]`, `["const", 0.5]`, `["mul", x, y]`."""
        if self.fn == "arg":
            return ["arg", self.index]
        if self.fn == "const":
            return ["const", self.value]
        return [self.fn, *(a.to_json() for a in self.args)]

    @staticmethod
    def from_json(data: Sequence[Any]) -> Expr:
        """The inverse of `to_json`; unknown functions raise KeyError."""
        if data[0] == "arg":
            return arg(int(data[1]))
        if data[0] == "const":
            return const(float(data[1]))
        return call(str(data[0]), *(Expr.from_json(d) for d in data[1:]))


def arg(index: int) -> Expr:
    """The element of input number `index`."""
    return Expr("arg", index=index)


def const(value: float) -> Expr:
    """A finite constant; anything else would not survive printing."""
    if not math.isfinite(value):
        raise ValueError(f"constant {value!r} in an expression is not finite")
    return Expr("const", value=float(value))


def call(fn: str, *args: Expr | float) -> Expr:
    """Apply a function of FUNCTIONS; plain numbers become constants."""
    if FUNCTIONS[fn].arity != len(args):
        raise ValueError(f"{fn} takes {FUNCTIONS[fn].arity} arguments, got {len(args)}")
    return Expr(fn, tuple(a if isinstance(a, Expr) else const(a) for a in args))

"""Owns the gated delta rule: a matrix a head that forgets by columns of its keys and learns by its
errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kernelgen.core.dtypes import FLOAT32, DType
from kernelgen.ir.op import Op, Trait
from kernelgen.ir.types import Sizes, Type
from kernelgen.ops.step import request_runs

SOFTPLUS_IS_LINEAR = 20.0
"""above it `log(1 + e^z)` is z: what published kernels do, and beyond float32 anyway"""
_STATE = 7


@dataclass(frozen=True)
class DeltaScan(Op):
    """For each head, S `[K, V]` and the tokens of a request one after the other:

    `S ← diag(e^g)·S`, `e = β·(v − Sᵀk)`, `S ← S + k·eᵀ`, `o = Sᵀq`.

    q and k are divided by `√(Σx² + eps)` over the head first, q is multiplied with `scale` then.
    With `z = f + bias` and `a = e^rate`: `g = bound·sigmoid(a·z)` where there is a (negative)
    bound, else `g = −a·softplus(z)`. β is the sigmoid of its logit. Everything is float32, only o
    is rounded.

    Inputs: q, k `[T, H, K]`, v `[T, H, V]`, f `[T, H, K]`, logits of β `[T, H]`, rate `[H]`, bias
    `[H·K]`, state `[H, K, V]` float32, rows. Outputs: o `[T, H, V]`, and the state after the step's
    tokens. A request's state is zero before its first token.
    """

    scale: float
    eps: float
    bound: float | None
    dtype: DType
    kind: ClassVar[str] = "delta_scan"
    traits: ClassVar[Trait] = Trait.SCAN | Trait.STATE_READ | Trait.STATE_WRITE

    def infer(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        """o like v, and the state; raises ValueError when heads or widths do not fit."""
        q, k, v, f, beta, rate, bias, state, _rows = inputs
        if len(q.shape) != 3 or {k.shape, f.shape} != {q.shape} or v.shape[:2] != q.shape[:2]:
            raise ValueError(f"delta_scan: q {q}, k {k}, v {v}, f {f} are not of the same heads")
        heads, keys = q.shape[1], q.row_width
        if state.shape != (heads, keys, v.row_width) or state.dtype != FLOAT32:
            raise ValueError(f"delta_scan: the state {state} does not fit k {k} and v {v}")
        if beta.shape != q.shape[:2] or rate.shape != (heads,):
            raise ValueError(f"delta_scan: {beta} and {rate} are not one for each of {heads} heads")
        if bias.shape != (q.static_elements,):
            raise ValueError(f"delta_scan: bias {bias} does not fit f {f}")
        if self.bound is not None and self.bound >= 0:
            raise ValueError(f"delta_scan: a bound of {self.bound} would let the state grow")
        return (Type(v.shape, self.dtype), state)

    def flops(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Decay, two products and an update of the matrix; about forty for each gate."""
        matrix = inputs[_STATE].static_elements
        return sizes.tokens * (7 * matrix + 40 * inputs[0].static_elements)

    def read_bytes(self, index: int, inputs: Sequence[Type], sizes: Sizes) -> int:
        """Of the state: one for each request."""
        size = inputs[index].size_bytes(sizes)
        return sizes.rows * size if index == _STATE else size

    def write_bytes(self, inputs: Sequence[Type], sizes: Sizes) -> int:
        """The result, and the state of each request."""
        made, state = self.infer(inputs)
        return made.size_bytes(sizes) + sizes.rows * state.size_bytes(sizes)

    def decays(self, f: Any, rate: Any, bias: Any) -> Any:
        """`g [T, H, K]`, natural logarithms of what is left of each key's row."""
        import torch

        z = f + bias.view(f.shape[1:])
        a = rate.exp()[:, None]
        if self.bound is not None:
            return self.bound * torch.sigmoid(a * z)
        soft = torch.log1p(torch.exp(z.clamp(max=SOFTPLUS_IS_LINEAR)))
        return -a * torch.where(z > SOFTPLUS_IS_LINEAR, z, soft)

    def normed(self, x: Any) -> Any:
        """Each head divided by its length."""
        import torch

        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + self.eps)

    def reference(self, inputs: Sequence[Any], step: Any) -> tuple[Any, ...]:
        """The recurrence, token by token."""
        import torch

        q, k, v, f, beta, rate, bias, state, _rows = inputs
        q, k = self.normed(q) * self.scale, self.normed(k)
        left, learn = self.decays(f, rate, bias).exp(), torch.sigmoid(beta)
        out, after = torch.zeros_like(v), state.copy()
        for run in request_runs(step):
            s = state.values[run.request].to(v.dtype)
            s = s if run.position else torch.zeros_like(s)
            for t in range(run.tokens.start, run.tokens.stop):
                s = s * left[t][..., None]
                error = learn[t][:, None] * (v[t] - torch.einsum("hkv,hk->hv", s, k[t]))
                s = s + k[t][..., None] * error[:, None, :]
                out[t] = torch.einsum("hkv,hk->hv", s, q[t])
            after.values[run.request] = s
        return (out, after)

    def attributes(self) -> str:
        """Scale, the constant of the norm, and the kind of decay."""
        return f"scale={self.scale!r} eps={self.eps!r} bound={self.bound!r}"

"""Owns routed experts: the router, a product for each chosen expert, the weighted sum."""

from __future__ import annotations

from kernelgen.core.dtypes import FLOAT32, INT32
from kernelgen.ir.expr import arg, call
from kernelgen.ir.graph import Role
from kernelgen.ir.types import Type
from kernelgen.lower.linear import linear
from kernelgen.lower.mlp import gated_expr, gated_mlp
from kernelgen.lower.norm import rms_norm
from kernelgen.lower.scope import Scope
from kernelgen.ops import (
    ChooseExperts,
    ExpertLinear,
    MapExperts,
    Pointwise,
    SumExperts,
    View,
    WeighExperts,
)
from kernelgen.spec.experts import ExpertMap, RouterSpec
from kernelgen.spec.model import MlpSpec, MoeSpec


def mixture(
    scope: Scope,
    name: str,
    x: str,
    spec: MoeSpec,
    *,
    experts: ExpertMap | None = None,
    rank: int = 0,
) -> tuple[str, ...]:
    """What routed experts, and the shared one if there is any, make of `x`: rows to be added up.

    With a map the rank computes its own experts alone; the ranks' results are to be summed (which
    experts on latents do not allow: their sum is normed here).
    """
    if experts is not None and spec.latent is not None:
        raise ValueError(f"{name}: experts on latents are normed when all of them are summed")
    ids, weights = router(scope, f"{name}.router", x, spec.router)
    count = spec.router.experts
    if experts is not None:
        if experts.experts != count:
            raise ValueError(f"{name}: a map of {experts.experts} experts, the router has {count}")
        table = scope.builder.declare(f"{name}.map", Type((count,), INT32), Role.WEIGHT)
        ids = scope.apply(f"{name}.local", MapExperts(), ids, table)
        count = len(experts.held(rank))
    inner = x
    if spec.latent is not None:
        act = scope.numerics.activation
        inner = linear(scope, f"{name}.latent_down", x, spec.latent, dtype=act)
    routed = _experts(scope, f"{name}.experts", inner, spec.expert, count, ids, weights)
    if spec.latent is not None:
        routed = _widened(scope, name, routed, spec, scope.width(x))
    if spec.shared is None:
        return (routed,)
    shared = gated_mlp(scope, f"{name}.shared", x, spec.shared)
    if spec.shared_gate:
        gate = linear(scope, f"{name}.shared.weight", x, 1)
        weighted = Pointwise(arg(0) * call("sigmoid", arg(1)), FLOAT32)
        shared = scope.apply(f"{name}.shared.weighted", weighted, shared, gate)
    return (routed, shared)


def _widened(scope: Scope, name: str, routed: str, spec: MoeSpec, width: int) -> str:
    """What the experts of a token add up to, normed and taken back to its width.

    The norm is not linear: ranks add up what their experts made before it.
    """
    if spec.latent_eps is None:
        rounded = Pointwise(arg(0), scope.numerics.activation)
        routed = scope.apply(f"{name}.latent_rounded", rounded, routed)
    else:
        routed = rms_norm(scope, f"{name}.latent_norm", routed, spec.latent_eps)
    if spec.latent_ranks > 1:
        mine = View((scope.width(routed) // spec.latent_ranks,))
        routed = scope.apply(f"{name}.latent_share", mine, routed)
    return linear(scope, f"{name}.latent_up", routed, width)


def router(scope: Scope, name: str, x: str, spec: RouterSpec) -> tuple[str, str]:
    """Chosen experts `int32 [T, top_k]`, best first, and their weights `float32 [T, top_k]`.

    Logits are float32 and never rounded: a choice between close ones must not hang on that.
    """
    logits = linear(scope, name, x, spec.experts)
    bias = (scope.vector(f"{name}.bias", spec.experts),) if spec.bias else ()
    scoring = spec.scoring.value
    choose = ChooseExperts(spec.top_k, scoring, spec.groups, spec.kept_groups, spec.group_top)
    ids = scope.apply(f"{name}.choose", choose, logits, *bias)
    weigh = WeighExperts(scoring, spec.renormalise, spec.scale)
    return ids, scope.apply(f"{name}.weigh", weigh, logits, ids)


def _experts(
    scope: Scope, name: str, x: str, spec: MlpSpec, count: int, ids: str, weights: str
) -> str:
    """`Σ_j w_j · down_j(act(gate_j(x)) · up_j(x))`; what is summed is not rounded before."""
    width, product = scope.width(x), ExpertLinear(FLOAT32)

    def stack(part: str, outputs: int, inputs: int) -> str:
        return scope.stack(f"{name}.{part}.weight", count, outputs, inputs)

    inner = spec.intermediate
    gate = scope.apply(f"{name}.gate", product, x, stack("gate", inner, width), ids)
    up = scope.apply(f"{name}.up", product, x, stack("up", inner, width), ids)
    act = Pointwise(gated_expr(spec), scope.numerics.activation)
    hidden = scope.apply(f"{name}.act", act, gate, up)
    down = scope.apply(f"{name}.down", product, hidden, stack("down", width, inner), ids)
    return scope.apply(f"{name}.sum", SumExperts(), down, weights)

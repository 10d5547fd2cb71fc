"""One division of a multiprocessor's memory for all kernels of a plan that streams weights."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import gpu_toy as toy

from kernelgen.codegen.cuda.carveout import ALL, NONE, SOME, carve_outs, rings, streams
from kernelgen.planner.plan import Plan


def _plan(family: str) -> Plan:
    """The toy's plan with all of its kernels from one family."""
    plan = toy.plan("decode", 4)

    def renamed(kernel: Any) -> Any:
        match = SimpleNamespace(region=kernel.match.region, family=SimpleNamespace(name=family))
        return replace(kernel, match=cast(Any, match))

    launches = tuple(replace(one, kernel=renamed(one.kernel)) for one in plan.launches)
    return replace(plan, launches=launches)


def test_all_kernels_of_a_streaming_plan_ask_for_the_same() -> None:
    units = [one.unit for kernel in toy.KERNELS.values() for one in kernel.passes]
    sizes = dict(zip((u.name for u in units), (1024, 75_000, 100_000, 2048), strict=False))
    images = {
        unit.name: toy.made_up_image(unit, 90, shared_bytes=sizes.get(unit.name, 1024))
        for unit in units
    }
    assert streams(_plan("gemv")) and not streams(_plan("skinny"))
    for family, small, middle in (("sliced", SOME, SOME), ("gemm", NONE, ALL)):
        found = carve_outs([_plan(family)], toy.program().kernels, images)
        meant = {1024: small, 2048: small, 75_000: middle, 100_000: middle}
        assert found == {name: meant[image.shared_bytes] for name, image in images.items()}


def test_all_memory_is_shared_throughout_a_plan_of_rings() -> None:
    units = [one.unit for kernel in toy.KERNELS.values() for one in kernel.passes]
    images = {u.name: toy.made_up_image(u, 90, shared_bytes=1024) for u in units}
    assert rings(_plan("ring")) and not rings(_plan("skinny"))
    plans = [_plan("ring"), _plan("gemm")]
    assert set(carve_outs(plans, toy.program().kernels, images).values()) == {ALL}
    plans.append(_plan("gemv"))  # kernels of both: registers are what needs the cache
    assert set(carve_outs(plans, toy.program().kernels, images).values()) == {SOME}


def test_what_does_not_fit_asks_for_all() -> None:
    units = [one.unit for kernel in toy.KERNELS.values() for one in kernel.passes]
    images = {u.name: toy.made_up_image(u, 90, shared_bytes=150 << 10) for u in units}
    assert set(carve_outs([_plan("gemv")], toy.program().kernels, images).values()) == {ALL}

"""Owns launching every kernel of a build for a tool that watches memory: nothing is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelgen.verify.built import Built, BuiltKernel
from kernelgen.verify.checks import Check, faults, worst
from kernelgen.verify.kernel_checks import layers_of
from kernelgen.verify.layouts import PAGE_TOKENS
from kernelgen.verify.library import KernelLibrary
from kernelgen.verify.place import Place
from kernelgen.verify.scenario import (
    Scenario,
    ladder_scenario,
    mixed_scenario,
    planned_scenarios,
)
from kernelgen.verify.step_checks import STEP, finite
from kernelgen.verify.step_trial import StepTrial
from kernelgen.verify.trial import Trial

MOST_TOKENS = 300
"""of a step that is watched: a launch takes ten to a hundred times as long"""
EACH = 2
"""steps that each tile of a kernel is launched on: full, and nearly full or shorter"""
Note = Callable[[str], None]


def launch_kernel(
    built: Built, kernel: BuiltKernel, library: KernelLibrary, where: Place, note: Note
) -> list[Check]:
    """Every tile of a kernel for each kind of layer, on buffers of its own."""
    found = []
    for layer in layers_of(built, kernel):
        for use in kernel.uses:
            trial = Trial(built, kernel, layer, use, library, where)
            for scenario in _few(planned_scenarios(use.phase, positions(built), use.size)):
                name = f"{scenario.name}, plan {use.phase} {use.size}"
                note(name)
                damage = trial.run(trial.given(scenario), 0).damage
                found.append(faults(kernel.name, "memory", 1, len(damage), f"{name}: {damage[:1]}"))
    return [worst(found)] if found else []


def launch_steps(built: Built, library: KernelLibrary, where: Place, note: Note) -> list[Check]:
    """One full step of every plan, with nonsense in whatever it must not depend on."""
    trial, found = StepTrial(built, library, where), []
    for plan in built.plans:
        make = ladder_scenario if plan.phase == "decode" else mixed_scenario
        scenario = make(min(plan.size, MOST_TOKENS), positions(built))
        name = f"{scenario.name}, plan of {plan.size}"
        note(name)
        taken = trial.run(plan, scenario, trial.content(scenario), poisoned=True)
        damage = taken.damage
        found += [finite(taken, name), faults(STEP, "memory", 1, len(damage), f"{name}: {damage}")]
    return [worst([c for c in found if c.what == what]) for what in ("finite", "memory")]


def positions(built: Built) -> int:
    """Tokens that a request of the build may have."""
    args, model = built.manifest["args"], built.manifest["model"]
    return int(min(args["max_pages"] * PAGE_TOKENS, model["max_positions"]))


def _few(scenarios: Sequence[Scenario]) -> Sequence[Scenario]:
    return [s for s in scenarios if s.tokens <= MOST_TOKENS][-EACH:]

"""Owns choosing the compiled plan of a step, and which plans a configuration can ever use."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..artifact.manifest import Plan
from ..errors import CapacityError


@dataclass(frozen=True)
class PlanTable:
    """The plans in use, each phase in order of size."""

    decode: tuple[Plan, ...]
    mixed: tuple[Plan, ...]

    @property
    def all(self) -> tuple[Plan, ...]:
        """Every plan of both phases."""
        return (*self.decode, *self.mixed)

    @property
    def workspace_bytes(self) -> int:
        """Workspace that the largest plan needs."""
        return max(plan.workspace_bytes for plan in self.all)

    def choose(self, rows: int, tokens: int) -> Plan:
        """Return the smallest plan that holds the step, a decode plan where each row is one token.

        Raises CapacityError where none does.
        """
        candidates = (*(self.decode if rows == tokens else ()), *self.mixed)
        for plan in candidates:
            if plan.size >= tokens:
                return plan
        raise CapacityError(f"no plan holds {rows} rows of {tokens} tokens")


def plans_in_use(plans: Sequence[Plan], max_rows: int, max_tokens: int) -> PlanTable:
    """Return the plans that steps of at most `max_rows` rows and `max_tokens` tokens can choose.

    Raises CapacityError where the largest mixed plan is too small.
    """
    decode = _up_to([plan for plan in plans if plan.phase == "decode"], min(max_rows, max_tokens))
    mixed = _up_to([plan for plan in plans if plan.phase == "mixed"], max_tokens)
    if mixed[-1].size < max_tokens:
        raise CapacityError(
            f"max_num_batched_tokens {max_tokens} exceeds the largest plan, which holds "
            f"{mixed[-1].size} tokens; lower it or build the model with larger sizes"
        )
    return PlanTable(decode, mixed)


def _up_to(plans: list[Plan], size: int) -> tuple[Plan, ...]:
    """Return `plans` by size, up to the first that holds `size`."""
    ordered = sorted(plans, key=lambda plan: plan.size)
    enough = sum(plan.size < size for plan in ordered) + 1
    return tuple(ordered[:enough])

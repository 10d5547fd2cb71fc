"""What a launch costs a step beyond its own chain: every launch, and weights that come late."""

from __future__ import annotations

from kernelgen.codegen.families.triton_among import LATE_US, LAUNCH_US, among_others_us
from kernelgen.hw import parse_target
from kernelgen.planner.family import Price

H200, AMPERE = parse_target("sm_90:h200"), parse_target("sm_80")


def test_every_launch_counts_and_late_weights_where_others_are_early() -> None:
    assert among_others_us("ring", "decode", 1, H200) == LAUNCH_US
    assert among_others_us("rows", "decode", 2, H200) == 2 * LAUNCH_US
    assert among_others_us("skinny", "decode", 1, H200) == LAUNCH_US + LATE_US
    assert among_others_us("skinny", "mixed", 1, H200) == LAUNCH_US


def test_launches_that_do_not_overlap_lose_nothing() -> None:
    assert among_others_us("skinny", "decode", 3, AMPERE) == 0


def test_a_search_adds_it_and_the_time_of_a_kernel_stays_its_own() -> None:
    price = Price(bytes=1, flops=1, us=2.0, choice={}, verdict="exact", among_us=0.5)
    assert (price.us, price.cost_us) == (2.0, 2.5)

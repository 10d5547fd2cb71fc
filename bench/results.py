"""Owns how results are told: tables with goals, the record, and the place in RESULTS.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from build_costs import CACHE_BYTES, Costs
from series import Series

HERE = Path(__file__).resolve().parent
MEMORY_SLACK = 400e6
DECODE, BATCHED, PREFILL = "decode, batch 1", "decode, batch 8", "prefill of 512"
NARROW, WIDE = "transformers bfloat16", "transformers float32"


class Measured(Protocol):
    """What is read of an engine."""

    name: str
    speed: dict[str, Series]
    bandwidth: Series
    share: Series


def tables(
    engines: Sequence[Measured], costs: Costs, facts: Mapping[str, Any], command: str
) -> tuple[str, list[str]]:
    """Markdown of all figures, and the goals that were missed."""
    goals = [*speed_goals(engines), *cost_goals(costs)]
    cases = list(engines[0].speed)
    rounds = len(engines[0].speed[cases[0]].values)
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    speeds = [(shown(e.name), *(e.speed[case].text() for case in cases)) for e in engines]
    lines = [
        f"{facts['date']}, {facts['cpu']}, {facts['cores']} cores, {versions}; load before the "
        f"run {facts['load_before']:.1f}. `{command}`; {rounds} rounds, median (quartiles).",
        "",
        *table(("tokens/s", *cases), speeds),
        "",
        *table(
            ("goal", "asked", "measured", ""),
            [(what, asked, found, "✓" if ok else "missed") for what, asked, found, ok in goals],
        ),
    ]
    return "\n".join(lines), [what for what, _, _, reached in goals if not reached]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table whose first column is text."""
    ruler = ["---", *("--:" for _ in head[1:])]
    return ["| " + " | ".join(cells) + " |" for cells in (head, ruler, *rows)]


def shown(name: str) -> str:
    """An engine as a row's head."""
    return name if name.startswith("transformers") else f"kernelgen bfloat16, {name}"


def speed_goals(engines: Sequence[Measured]) -> list[tuple[str, str, str, bool]]:
    """Ratios are taken round by round."""
    by_name = {engine.name: engine for engine in engines}
    best, narrow, wide = engines[0], by_name[NARROW], by_name[WIDE]
    ratios = [
        ("decode over transformers bfloat16", 2.0, best.speed[DECODE].over(narrow.speed[DECODE])),
        ("prefill over transformers bfloat16", 1.0,
         best.speed[PREFILL].over(narrow.speed[PREFILL])),
        ("prefill over transformers float32", 0.7, best.speed[PREFILL].over(wide.speed[PREFILL])),
        ("batch 8 over batch 1", 3.0, best.speed[BATCHED].over(best.speed[DECODE])),
    ]  # fmt: skip
    goals = [(what, f"{least} ×", f"{r.text(2)} ×", r.median >= least) for what, least, r in ratios]
    low, high = best.share.quartiles
    found = f"{best.share.median:.0%} ({low:.0%}–{high:.0%}) of {best.bandwidth.median:.1f} GB/s"
    return [*goals, ("read bandwidth that decode takes", "60%", found, best.share.median >= 0.6)]


def cost_goals(costs: Costs) -> list[tuple[str, str, str, bool]]:
    """Build, growth, memory; the clocks of a start have no goal of their own."""
    most = costs.weight_bytes + CACHE_BYTES + MEMORY_SLACK
    start = (
        f"{costs.first_token_from_process:.2f} s after process start, "
        f"{costs.first_token_from_imports:.2f} s after imports"
    )
    return [
        ("build from nothing, 3 instruction sets", "90 s", f"{costs.cold_seconds:.1f} s",
         costs.cold_seconds <= 90),
        ("build again", "3 s", f"{costs.warm_seconds:.2f} s", costs.warm_seconds <= 3),
        ("both wheels the same bytes", "yes", "yes" if costs.same_bytes else "no",
         costs.same_bytes),
        ("plan: 60 layers over 6", "1.2 ×", f"{costs.plan_growth:.2f} ×", costs.plan_growth <= 1.2),
        ("build: 60 layers over 6, processor time", "1.2 ×", f"{costs.build_growth:.2f} ×",
         costs.build_growth <= 1.2),
        ("peak memory of `run`", f"{most / 1e6:.0f} MB", f"{costs.peak_bytes / 1e6:.0f} MB",
         costs.peak_bytes <= most),
        ("first token", "", start, True),
        ("answer to “What is the capital of France?”", "Paris", costs.answer.strip(),
         "Paris" in costs.answer),
    ]  # fmt: skip


def write_record(
    engines: Sequence[Measured], costs: Costs, facts: Mapping[str, Any], command: str, text: str
) -> None:
    """The rounds as JSON, and the tables between their marks in RESULTS.md."""
    record = {
        **facts,
        "command": command,
        "engines": {
            engine.name: {
                "tokens_per_second": {case: s.values for case, s in engine.speed.items()},
                "bandwidth_gb_per_second": engine.bandwidth.values,
                "share_of_bandwidth": engine.share.values,
            }
            for engine in engines
        },
        "costs": costs.to_json(),
    }
    path = HERE / "records" / "smollm2_cpu.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    put(HERE / "RESULTS.md", "smollm2_cpu", text)
    put(HERE.parent / "README.md", "figures", "\n".join(short_table(engines)))


def short_table(engines: Sequence[Measured]) -> list[str]:
    """The medians that a reader sees first: ours on the best instruction set, and the peer."""
    by_name = {engine.name: engine for engine in engines}
    columns = (engines[0], by_name[NARROW], by_name[WIDE])
    rows = [
        (f"{case}, tokens/s", *(f"{engine.speed[case].median:.0f}" for engine in columns))
        for case in engines[0].speed
    ]
    return table(("", "kernelgen bfloat16", NARROW, WIDE), rows)


def put(page: Path, mark: str, text: str) -> None:
    """Replaces what stands between two marks of a page."""
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    before, _, rest = page.read_text().partition(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}")

"""Owns a plan as one self-contained HTML page: kernels as boxes in order, and what cuts them."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path

from kernelgen.report.figures import bytes_text, count_text, percent_text, us_text
from kernelgen.report.grouping import Section, sections
from kernelgen.report.op_chain import Edge, op_chain
from kernelgen.report.plan_data import FusionView, KernelView, PlanView

_STYLE = Path(__file__).with_name("plan_page.css")
_HORIZONTAL = "horizontal"  # the one rule whose two ops read one value and pass none on
_COLOURS = ("#3b82d6", "#d97706", "#2f9e6e", "#a855c7", "#d64550", "#0e8a9c", "#8a7a22", "#64748b")


def plan_html(plan: PlanView) -> str:
    """The page; it loads nothing, and every text of the plan is escaped."""
    page = _Page(plan)
    style = _STYLE.read_text(encoding="utf-8")
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(plan.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(page.body())
        + "\n</body>\n</html>\n"
    )


class _Page:
    """The parts of one plan's page."""

    def __init__(self, plan: PlanView) -> None:
        self.plan = plan
        self.edges = [
            Edge(f.a, f.b, f.rule, flows=f.rule != _HORIZONTAL) for f in plan.fusions if f.taken
        ]
        self.total_us = plan.predicted_us or 1.0
        families = dict.fromkeys(f"{k.family}/{k.backend}" for k in plan.kernels)
        self.colour = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(families)}

    def body(self) -> Iterator[str]:
        yield f"<h1>{escape(self.plan.title)}</h1>"
        yield from self._tiles()
        yield from self._strip()
        for section in sections(self.plan.kernels):
            yield from self._section(section)
        yield from self._fusions()

    def _tiles(self) -> Iterator[str]:
        plan = self.plan
        taken = sum(fusion.taken for fusion in plan.fusions)
        moved = sum(kernel.bytes for kernel in plan.kernels)
        tiles = [
            (us_text(plan.predicted_us), "predicted"),
            (us_text(plan.floor_us), "memory limit"),
            (percent_text(plan.floor_us / self.total_us), "of the limit reached"),
            (str(len(plan.kernels)), "launches"),
            (bytes_text(moved), "moved"),
            (f"{taken} / {len(plan.fusions) - taken}", "pairs fused / not"),
        ]
        if plan.workspace_bytes:
            tiles.append((bytes_text(plan.workspace_bytes), "workspace"))
        for verdict, part in plan.coverage.items():
            tiles.append((percent_text(part.share), f"of the time is {verdict}"))
        cells = (
            f"<div class=tile><b>{escape(a)}</b><span>{escape(b)}</span></div>" for a, b in tiles
        )
        yield f"<div class=tiles>{''.join(cells)}</div>"

    def _strip(self) -> Iterator[str]:
        """Where the time goes, by family."""
        parts: dict[str, float] = {}
        for kernel in self.plan.kernels:
            name = f"{kernel.family}/{kernel.backend}"
            parts[name] = parts.get(name, 0.0) + kernel.predicted_us
        yield "<h2>Where the time goes</h2><div class=strip>"
        for name, us in parts.items():
            width = 100 * us / self.total_us
            yield f'<i style="width:{width:.2f}%;background:{self.colour[name]}"></i>'
        yield "</div><div class=key>"
        for name, us in parts.items():
            dot = f'<span class=dot style="background:{self.colour[name]}"></span>'
            share = percent_text(us / self.total_us)
            yield f"<span>{dot}{escape(name)} {us_text(us)} ({share})</span>"
        yield "</div>"

    def _section(self, section: Section) -> Iterator[str]:
        share = percent_text(section.us / self.total_us)
        yield f"<h2>{escape(section.title)} <span class=quiet>"
        yield f"{us_text(section.us)}, {share} of the step</span></h2>"
        for i, kernel in enumerate(section.kernels):
            if i:
                yield self._between(section.kernels[i - 1], kernel)
            yield self._kernel(kernel, section.times)

    def _kernel(self, kernel: KernelView, times: int) -> str:
        colour = self.colour[f"{kernel.family}/{kernel.backend}"]
        step_share = kernel.predicted_us * times / self.total_us
        limit = self.plan.memory_share(kernel)
        cells = [
            _number(
                us_text(kernel.predicted_us),
                f"{percent_text(step_share)} of the step",
                step_share,
                colour,
            ),
            _number(
                bytes_text(kernel.bytes),
                "" if limit is None else f"{percent_text(limit)} of memory limit",
                limit,
                colour,
            ),
            _number(f"{count_text(kernel.flops)} FLOPs", "", None, colour),
        ]
        tags = [f"{kernel.family}/{kernel.backend}", kernel.verdict]
        tags += [f"{name} {value}" for name, value in kernel.choice.items()]
        tags += [f"bound by {text}" for text in kernel.limits]
        return (
            f'<div class=kernel style="border-left-color:{colour}"><div class=head>'
            f"<b><code>{escape(kernel.name)}</code></b>"
            + "".join(f"<span class=tag>{escape(tag)}</span>" for tag in tags)
            + f"</div><div class=numbers>{''.join(cells)}</div>"
            + f"<div class=ops>{op_chain(kernel.ops, self.edges)}</div></div>"
        )

    def _between(self, first: KernelView, second: KernelView) -> str:
        """Why two kernels that follow each other are not one."""
        cut = [
            fusion
            for fusion in self.plan.fusions
            if not fusion.taken
            and {fusion.a, fusion.b} & {*first.ops}
            and {fusion.a, fusion.b} & {*second.ops}
        ]
        texts = dict.fromkeys(f"{f.a} → {f.b} not fused: {f.reason}" for f in cut)
        return f"<div class=between>{''.join(f'<p>{escape(text)}</p>' for text in texts)}</div>"

    def _fusions(self) -> Iterator[str]:
        yield "<h2>Every neighbouring pair</h2>"
        for block, group in groupby(self.plan.fusions, key=lambda fusion: fusion.block):
            items = list(group)
            times = f" ({items[0].times} ×)" if items[0].times > 1 else ""
            for taken, word in ((False, "not fused"), (True, "fused")):
                chosen = [fusion for fusion in items if fusion.taken is taken]
                if chosen:
                    title = escape(f"{block or 'step'}{times}: {len(chosen)} {word}")
                    opened = "" if taken else " open"
                    yield f"<details{opened}><summary>{title}</summary><ul class=pairs>"
                    yield from map(_pair, chosen)
                    yield "</ul></details>"


def _number(value: str, note: str, share: float | None, colour: str) -> str:
    meter = ""
    if share is not None:
        width = 100 * min(max(share, 0.0), 1.0)
        meter = f'<div class=meter><i style="width:{width:.1f}%;background:{colour}"></i></div>'
    return f"<div>{escape(value)} <span class=quiet>{escape(note)}</span>{meter}</div>"


def _pair(fusion: FusionView) -> str:
    mark = "<span class=yes>fused</span>" if fusion.taken else "<span class=no>not fused</span>"
    saves = "saves" if fusion.taken else "would save"
    launches = f"{fusion.launches_saved} launch" + ("es" if fusion.launches_saved != 1 else "")
    gain = f"{saves} {bytes_text(fusion.bytes_saved)} and {launches}"
    return (
        f"<li><code>{escape(fusion.a)} → {escape(fusion.b)}</code> {mark} "
        f"<span class=tag>{escape(fusion.rule)}</span><br>{escape(fusion.reason)} "
        f"<span class=quiet>({escape(gain)})</span></li>"
    )

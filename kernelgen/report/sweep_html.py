"""Owns the report of a sweep as one self-contained HTML page with its plots drawn inline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from kernelgen.report.figures import percent_text, us_text
from kernelgen.report.sweep_data import FamilySweep, KernelSweep, SweepView
from kernelgen.report.sweep_text import STEPS_HEAD, step_rows

_STYLE = Path(__file__).with_name("plan_page.css")
_MORE = """
table { border-collapse: collapse; width: 100%; font-size: .85rem; }
td, th { text-align: left; border-top: 1px solid var(--line); padding: .2rem .5rem .2rem 0; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
.plot { overflow-x: auto; } .plot text { fill: var(--text); font-size: 12px; }
.plot line { stroke: var(--line); } .plot .diagonal { stroke: var(--quiet); }
"""
_COLOURS = ("#3b82d6", "#d97706", "#2f9e6e", "#a855c7", "#d64550", "#0e8a9c", "#8a7a22", "#64748b")
_LABEL, _BARS, _LINE = 190, 520, 22
_SIDE, _EDGE = 420, 46


def sweep_html(view: SweepView) -> str:
    """The page; it loads nothing, and every text of the journal is escaped."""
    families = dict.fromkeys(k.family for k in view.kernels)
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(families)}
    style = _STYLE.read_text(encoding="utf-8") + _MORE
    body = "\n".join(_body(view, colours))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(view.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"{body}\n</body>\n</html>\n"
    )


def _body(view: SweepView, colours: dict[str, str]) -> Iterator[str]:
    yield f"<h1>{escape(view.title)}</h1>"
    yield f"<p class=quiet>{escape(view.date)}, driver {escape(view.driver)}</p>"
    yield _tiles(view)
    yield "<h2>Share of the ceiling, before and after</h2>"
    yield from _bars(view.families, colours)
    yield "<h2>Predicted against measured</h2>"
    yield from _scatter(view.kernels, colours)
    yield "<h2>Kernels</h2>"
    heads = ("kernel", "size", "today", "best", "ceiling", "tile", "")
    yield _table(heads, [_kernel(k) for k in view.kernels], range(2, 5))
    if view.in_steps:
        yield "<h2>Chosen inside whole steps</h2>"
        yield _table(STEPS_HEAD, step_rows(view.in_steps), range(2, 4))
    yield "<h2>Not measured, and why</h2>"
    pruned = [(p.family, str(p.tiles), p.reason, p.example) for p in view.pruned]
    yield _table(("family", "tiles", "reason", "for example"), pruned, (1,))
    if view.faults:
        yield "<h2>Bad candidates</h2>"
        faults = [(f.kernel, f.bucket, f.candidate, f.problem) for f in view.faults]
        yield _table(("kernel", "size", "tile", "problem"), faults, ())


def _tiles(view: SweepView) -> str:
    gains = [k.before_us / k.us for k in view.kernels if k.us and k.before_us and not k.flag]
    mean = math.exp(sum(map(math.log, gains)) / len(gains)) if gains else None
    tiles = (
        (str(len(view.kernels)), "kernels"),
        (str(sum(k.looked_at for k in view.kernels)), "tiles looked at"),
        (str(sum(k.candidates for k in view.kernels)), "measured"),
        (str(len(view.faults)), "bad"),
        (str(sum(bool(k.flag) for k in view.kernels)), "disturbed"),
        ("–" if mean is None else f"{mean:.2f} ×", "faster than today's tiles (mean)"),
    )
    cells = (f"<div class=tile><b>{escape(a)}</b><span>{escape(b)}</span></div>" for a, b in tiles)
    return f"<div class=tiles>{''.join(cells)}</div>"


def _bars(families: Sequence[FamilySweep], colours: dict[str, str]) -> Iterator[str]:
    """A bar for what is reached now, a mark for what was reached before."""
    shown = [f for f in families if f.after is not None]
    height = _LINE * len(shown) + 20
    yield f'<div class=plot><svg width="{_LABEL + _BARS + 60}" height="{height}" role="img">'
    for share in (0.25, 0.5, 0.75, 1.0):
        x = _LABEL + _BARS * share
        yield f'<line x1="{x:g}" y1="0" x2="{x:g}" y2="{height - 16}"/>'
        yield f'<text x="{x - 14:g}" y="{height - 3}">{share:.0%}</text>'
    for i, one in enumerate(shown):
        y, after, before = i * _LINE, min(1.0, one.after or 0.0), min(1.0, one.before or 0.0)
        label = escape(f"{one.family} {one.bucket}")
        colour = colours[one.family]
        yield f'<text x="0" y="{y + 15}">{label}</text>'
        yield (
            f'<rect x="{_LABEL}" y="{y + 4}" width="{_BARS * after:.1f}" height="14" rx="3"'
            f' fill="{colour}"><title>{label}: {percent_text(before)} → {percent_text(after)}'
            "</title></rect>"
        )
        x = _LABEL + _BARS * before
        yield f'<rect x="{x - 1.5:.1f}" y="{y + 1}" width="3" height="20" fill="currentColor"/>'
    yield "</svg></div><p class=quiet>Bar: with the measured winners. Mark: with today's tiles.</p>"


def _scatter(kernels: Sequence[KernelSweep], colours: dict[str, str]) -> Iterator[str]:
    """Both axes logarithmic: on the diagonal the cost model is right."""
    points = [k for k in kernels if k.us and k.predicted_us]
    if not points:
        yield "<p class=quiet>Nothing was measured.</p>"
        return
    times = [t for k in points for t in (k.us or 1.0, k.predicted_us or 1.0)]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    high = max(high, low + 1)

    def at(us: float) -> float:
        return (math.log10(us) - low) / (high - low) * _SIDE

    whole = _SIDE + _EDGE + 10
    yield f'<div class=plot><svg width="{whole}" height="{whole}" role="img">'
    for power in range(low, high + 1):
        along, label = at(10.0**power), us_text(10.0**power)
        x, y = _EDGE + along, _SIDE - along + 10
        yield f'<line x1="{x:.1f}" y1="10" x2="{x:.1f}" y2="{_SIDE + 10}"/>'
        yield f'<line x1="{_EDGE}" y1="{y:.1f}" x2="{_EDGE + _SIDE}" y2="{y:.1f}"/>'
        yield f'<text x="{x - 16:.1f}" y="{_SIDE + 26}">{label}</text>'
        yield f'<text x="0" y="{y + 4:.1f}">{label}</text>'
    yield (f'<line class=diagonal x1="{_EDGE}" y1="{_SIDE + 10}" x2="{_EDGE + _SIDE}" y2="10"/>')
    for k in points:
        us, model = k.us or 1.0, k.predicted_us or 1.0
        title = escape(f"{k.kernel} {k.bucket}: predicted {us_text(model)}, measured {us_text(us)}")
        yield (
            f'<circle cx="{_EDGE + at(model):.1f}" cy="{_SIDE - at(us) + 10:.1f}" r="4"'
            f' fill="{colours[k.family]}" fill-opacity=".75"><title>{title}</title></circle>'
        )
    yield "</svg></div><div class=key>"
    for name, colour in colours.items():
        yield f'<span><span class=dot style="background:{colour}"></span>{escape(name)}</span>'
    yield "</div><p class=quiet>Across: predicted. Up: measured.</p>"


def _kernel(k: KernelSweep) -> Sequence[str]:
    share = percent_text(k.ceiling_us / k.us) if k.us else "–"
    tile = ", ".join(f"{name} {value}" for name, value in k.tile.items())
    note = k.flag or ("" if k.chosen else "in no plan yet")
    return (k.kernel, k.bucket, _us(k.before_us), _us(k.us), share, tile, note)


def _us(value: float | None) -> str:
    return "–" if value is None else us_text(value)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if i in numbers else ''}>{escape(text)}</{tag}>"
            for i, text in enumerate(row)
        )

    lines = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<div class=plot><table><tr>{cells(heads, 'th')}</tr>\n{lines}</table></div>"

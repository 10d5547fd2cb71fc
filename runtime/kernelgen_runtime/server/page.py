"""Owns the page for people: one HTML text, made anew for each look, without scripts."""

import html
import time

from .meters import cache_share
from .service import Service, State

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
REFRESH_SECONDS = 2
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #888; --good: #2a9d4a; --bad: #c0392b; }
body { font: 16px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 60rem; }
h1 { font-size: 1.3rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 1.6rem 0 .5rem; }
.state { font-weight: 600; } .ready { color: var(--good); } .dead { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .6rem; }
.tile { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.tile span, .soft { color: var(--soft); font-size: .85rem; }
meter { width: 100%; }
table { border-collapse: collapse; width: 100%; }
td { border-top: 1px solid var(--line); padding: .3rem .5rem .3rem 0; vertical-align: top;
     overflow-wrap: anywhere; }
td:first-child { color: var(--soft); width: 40%; }
"""


def page(service: Service) -> str:
    """Return the page. Nothing of what requests say is on it."""
    name = html.escape(service.names[0] if service.names else "kernelgen")
    state = service.state
    body = [
        f'<h1>{name}</h1><p><span class="state {state}" id="state">{state}</span> '
        f'<span class="soft">for {_duration(time.time() - service.started)}</span></p>'
    ]
    if service.facts is not None:
        body += [_tiles(service), _rows("Plan and memory", _plan(service)),
                 _rows("Since the start", _sums(service))]  # fmt: skip
    refresh = f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}">'
    refresh = refresh if state is not State.DEAD else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{refresh}<title>{name}: {state}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>"
    )


def _tiles(service: Service) -> str:
    meters, facts = service.meters, service.facts
    assert facts is not None and service.link is not None
    load = service.link.load
    used = cache_share(load, facts.pages)
    rate = meters.tokens_per_second(time.perf_counter())
    tiles = [
        (str(load.running), f"running, of {facts.max_num_seqs}", "running"),
        (str(load.waiting), "waiting", "waiting"),
        (f"{rate:.1f}", "tokens/s, last 10 s", "rate"),
        (_seconds(meters.first_token.quantile(0.5)), "to first token, median up to", "first"),
        (_seconds(meters.gap.quantile(0.5)), "between tokens, median up to", "gap"),
        (f"{used:.1%}", f"cache in use{_meter(used)}", "cache"),
        ("none", "drafts accepted: nothing is drafted", "acceptance"),
    ]
    return '<div class="tiles">' + "".join(
        f'<div class="tile"><b id="{key}">{html.escape(value)}</b><span>{text}</span></div>'
        for value, text, key in tiles
    ) + "</div>"  # fmt: skip


def _plan(service: Service) -> list[tuple[str, str]]:
    facts = service.facts
    assert facts is not None and service.link is not None
    where = facts.device if facts.threads is None else f"{facts.device}, {facts.threads} threads"
    return [
        ("build", f"{facts.name} {facts.version}, {facts.architecture}, {facts.dtype}"),
        ("target", f"{facts.target} on {where}"),
        *((f"plans, {line.partition(' ')[0]}", line.partition(" ")[2]) for line in facts.plans),
        *((line.partition(" ")[0], line.partition(" ")[2]) for line in facts.notes),
        ("weights", f"{facts.weight_bytes / 1e9:.2f} GB, read in {facts.weight_seconds:.2f} s"),
        (
            "cache",
            f"{facts.cache_bytes / 1e9:.2f} GB, {facts.pages * facts.page_tokens} tokens: "
            f"{facts.concurrency:.1f} requests of {facts.max_model_len} tokens",
        ),
        ("memory limit", _achieved(service)),
    ]


def _achieved(service: Service) -> str:
    """Return the share of the memory's bandwidth that decode steps reach."""
    assert service.link is not None
    load = service.link.load
    if not load.decode_seconds:
        return "no decode step yet"
    reached = load.decode_bytes / load.decode_seconds
    step = 1e3 * load.decode_seconds / load.decode_steps
    said = f"{reached / 1e9:.1f} GB/s in decode, {step:.2f} ms a step"
    if load.read_bandwidth <= 0:
        return said + ("; what the machine can read is not measured yet"
                       if load.read_bandwidth == 0 else "")  # fmt: skip
    share = reached / load.read_bandwidth
    return f"{said}: {share:.0%} of the {load.read_bandwidth / 1e9:.1f} GB/s it can read"


def _sums(service: Service) -> list[tuple[str, str]]:
    meters, load = service.meters, service.link.load if service.link else None
    assert load is not None
    hits = load.prefix_hits / load.prefix_queries if load.prefix_queries else 0.0
    finished = ", ".join(f"{count} {reason}" for reason, count in meters.finished.items())
    rejected = ", ".join(f"{n} {reason}" for reason, n in service.admission.rejected.items())
    return [
        ("choices ended", finished or "none"),
        ("tokens", f"{meters.prompt_tokens} of prompts, {meters.generated_tokens} generated"),
        ("prefix found", f"{hits:.0%} of prompt tokens"),
        ("preemptions", str(load.preemptions)),
        ("refused", rejected or "none"),
    ]


def _rows(title: str, rows: list[tuple[str, str]]) -> str:
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>"
        for name, value in rows
    )
    return f"<h2>{title}</h2><table>{cells}</table>"


def _meter(share: float) -> str:
    return f'<meter min="0" max="1" high="0.9" value="{share:.4f}"></meter>'


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s"


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours} h {minute:02} min" if hours else f"{minute} min {second:02} s"

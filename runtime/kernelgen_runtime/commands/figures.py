"""Owns the figures under an answer: both clocks of the start, tokens/s, achieved bandwidth."""

from typing import Any

from ..clock import peak_host_bytes
from ..device.cuda import CudaDevice
from ..generation import Output
from ..llm import LLM

Figures = dict[str, Any]


def figures(llm: LLM, output: Output, process_start: float, imports_done: float) -> Figures:
    """Return everything measured, in s, ms, tokens/s and GB/s; None where it was not."""
    times, meter = output.timings, llm.engine.meter
    achieved = meter.bytes / meter.seconds / 1e9 if meter.seconds else None
    prefill_seconds = times.first_token - times.scheduled
    return {
        "prompt_tokens": len(output.prompt_ids),
        "output_tokens": len(output.token_ids),
        "device": llm.device.label,
        "target": llm.manifest.target,
        "threads": None if isinstance(llm.device, CudaDevice) else llm.threads,
        "load_bytes": llm.weights.bytes,
        "load_seconds": llm.weights.seconds,
        "load_gb_per_second": llm.weights.bytes / llm.weights.seconds / 1e9,
        "graphs": llm.graphs,
        "start_seconds": {
            "artifact": llm.laps.begun - imports_done,
            **llm.laps.seconds,
            "first_token": times.first_token - times.scheduled,
        },
        "peak_host_bytes": peak_host_bytes(),
        "first_token_seconds_from_process_start": times.first_token - process_start,
        "first_token_seconds_from_imports_done": times.first_token - imports_done,
        "prefill_seconds": prefill_seconds,
        "prefill_tokens_per_second": len(output.prompt_ids) / prefill_seconds,
        "decode_steps": meter.steps,
        "decode_ms_per_step": 1e3 * meter.seconds / meter.steps if meter.steps else None,
        "decode_steps_without_graph": llm.program.eager_decodes,
        "decode_tokens_per_second": meter.tokens / meter.seconds if meter.seconds else None,
        "decode_bytes_per_step": meter.bytes // meter.steps if meter.steps else None,
        "achieved_gb_per_second": achieved,
        "read_bandwidth_gb_per_second": None,
        "share_of_read_bandwidth": None,
    }


def compared(measured: Figures, bandwidth: float | None) -> Figures:
    """Return `measured` with the read bandwidth of the machine, in GB/s, beside it."""
    achieved = measured["achieved_gb_per_second"]
    share = achieved / bandwidth if achieved and bandwidth else None
    return measured | {
        "read_bandwidth_gb_per_second": bandwidth,
        "share_of_read_bandwidth": share,
    }


def figure_lines(measured: Figures) -> list[str]:
    """Return `measured` as lines for a reader."""
    lines = [
        "first token {first_token_seconds_from_process_start:.2f} s after process start, "
        "{first_token_seconds_from_imports_done:.2f} s after imports",
        "prefill {prompt_tokens} tokens, {prefill_tokens_per_second:.1f} tokens/s",
    ]
    if measured["decode_steps"]:
        where = "{device}" if measured["threads"] is None else "{threads} threads"
        lines.append(
            "decode {decode_steps} tokens, {decode_tokens_per_second:.1f} tokens/s, "
            f"{{decode_ms_per_step:.3f}} ms a step, {where}"
        )
        line = "read {achieved_gb_per_second:.1f} GB/s of weights and cache"
        if measured["share_of_read_bandwidth"]:
            line += ", {share_of_read_bandwidth:.0%} of {read_bandwidth_gb_per_second:.1f} measured"
        lines.append(line)
    return [line.format(**measured) for line in lines]

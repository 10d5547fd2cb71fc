"""Owns what a server logs and how: its own lines, those of HTTP, figures every ten seconds."""

import asyncio
import logging
import sys

from .service import LOG, Service

STATS_SECONDS = 10.0
_MACHINES_ASK = ("/health", "/ping", "/metrics", "/load")


def set_up_logging(level: str) -> None:
    """Let everything go to stderr, from `level` on ("trace" is as much as "debug")."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    number = logging.getLevelNamesMapping().get(level.upper(), logging.DEBUG)
    for name in ("kernelgen.server", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:], logger.propagate = [handler], False
        logger.setLevel(number)
    # It tells of its own start and end; ours are told already.
    logging.getLogger("uvicorn.error").setLevel(max(number, logging.WARNING))
    logging.getLogger("uvicorn.access").addFilter(_is_of_interest)
    logging.getLogger("uvicorn.access").addFilter(_without_query)


async def log_figures(service: Service) -> None:
    """Log figures every ten seconds in which tokens came; ends when it is cancelled."""
    before = 0
    while True:
        await asyncio.sleep(STATS_SECONDS)
        tokens, link = service.meters.generated_tokens, service.link
        if tokens != before and link is not None and link.facts is not None:
            LOG.info(
                "%.1f tokens/s, %d running, %d waiting, cache %.1f%% in use",
                *((tokens - before) / STATS_SECONDS, link.load.running, link.load.waiting),
                100.0 * link.load.used_pages / max(1, link.facts.pages),
            )
        before = tokens


def _is_of_interest(record: logging.LogRecord) -> bool:
    """Leave out what machines ask every few seconds."""
    path = record.args[2] if isinstance(record.args, tuple) and len(record.args) > 2 else ""
    return path not in _MACHINES_ASK


def _without_query(record: logging.LogRecord) -> bool:
    """Cut off what stands behind the path: no route reads it, and people put keys there."""
    if isinstance(record.args, tuple) and len(record.args) > 2:
        client, method, path, *rest = record.args
        record.args = (client, method, str(path).partition("?")[0], *rest)
    return True

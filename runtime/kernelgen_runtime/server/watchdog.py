"""Owns the watch over an engine that is alive and does nothing: a step that never ends."""

import asyncio

from .link import EngineLink

LOOKS = 4
"""times that it looks in the time after which it gives up"""


async def watch(link: EngineLink, seconds: float) -> None:
    """Give an engine up once it has said nothing for so long while it had something to compute.

    Ends with the engine. `seconds` 0: it is waited for without end.
    """
    while seconds and not link.ended.done():
        await asyncio.sleep(min(1.0, seconds / LOOKS))
        if link.silent_seconds > seconds:
            load = link.load
            link.give_up(
                f"no step has ended for {seconds:g} s (--watchdog-timeout): {load.running} requests"
                f" were running and {load.waiting} waiting after the one before"
            )

"""Owns the watch over an engine that is alive and does nothing: a step that never ends."""

import asyncio

from .link import EngineLink

LOOKS = 4
"""times that it looks in the time after which it gives up"""


async def watch(link: EngineLink, seconds: float) -> None:
    """Give an engine up once it has not answered for so long, whatever it has to do.

    It answers between steps, so no step may last longer. Ends with the engine. `seconds` 0: it is
    waited for without end.
    """
    pause = min(1.0, seconds / LOOKS)
    while seconds and not link.ended.done():
        if not await _answers(link, seconds):
            load = link.load
            link.give_up(
                f"it has not answered for {seconds:g} s (--watchdog-timeout): after its last step "
                f"{load.running} requests were running and {load.waiting} waiting"
            )
        await asyncio.sleep(pause)


async def _answers(link: EngineLink, seconds: float) -> bool:
    """Whether the engine answers, or ends, in time.

    The time is cut into looks: a process that stood still itself (a debugger, a laptop's lid) finds
    one of them over, not all, and reads the answer in the next.
    """
    answer = link.ping()
    for _ in range(LOOKS):
        done, _ = await asyncio.wait(
            (answer, link.ended), timeout=seconds / LOOKS, return_when=asyncio.FIRST_COMPLETED
        )
        if done:
            return True
    return False

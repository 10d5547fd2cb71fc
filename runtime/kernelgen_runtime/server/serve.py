"""Owns the life of a server: bound, started, ready, drained, ended; nothing is left behind."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from ..errors import KernelgenRuntimeError
from .app import create_app
from .banner import banner, ready_lines
from .bind import address_of
from .child import CLOSE_SECONDS as ENGINE_SECONDS
from .child import EngineProcess
from .link import EngineDeadError
from .logs import log_figures, set_up_logging
from .options import ServeOptions
from .protocol import limited_protocol
from .service import LOG, Service
from .watchdog import watch

LINGER_SECONDS = 2.0
"""how long a server whose engine has died still says so"""
CLOSE_SECONDS = 2.0
"""for connections to end once nothing is under way"""
END_SECONDS = CLOSE_SECONDS + 1 + ENGINE_SECONDS + 1
"""after which the process is gone, whatever still holds it"""


class _Uvicorn(uvicorn.Server):
    """Signals are ours: the first one drains."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(
    options: ServeOptions, listener: socket.socket, child: EngineProcess, started: float
) -> int:
    """Serve until a signal or the engine's end; return the exit code.

    `started` is when the process began, in seconds of `time.perf_counter`.
    """
    flags = options.flags
    set_up_logging(flags.uvicorn_log_level)
    url = address_of(listener, flags.host, flags.uds, bool(flags.ssl_certfile))
    for line in banner(options, url):
        LOG.info(line)
    try:
        server = Server(options, listener, child, url, started)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            code = runner.run(server.run())
        if server.failure:
            print(f"error: {server.failure}", file=sys.stderr)
        return code
    finally:
        if flags.uds:
            with contextlib.suppress(OSError):
                os.unlink(flags.uds)


class Server:
    """One run."""

    def __init__(
        self,
        options: ServeOptions,
        listener: socket.socket,
        child: EngineProcess,
        url: str,
        started: float,
    ) -> None:
        self._options, self._listener, self._child = options, listener, child
        self._url, self._started = url, started
        self.failure = ""
        """why it could not start, or had to end"""
        self._stop = asyncio.Event()
        self._signals = 0

    async def run(self) -> int:
        """Serve; return the exit code."""
        service = Service(self._options, self._child)
        self._service = service
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        http = _Uvicorn(self._config(service))
        serving = asyncio.create_task(http.serve(sockets=[self._listener]))
        figures = asyncio.create_task(log_figures(service))
        if self._options.flags.disable_log_stats:
            figures.cancel()
        try:
            code = await self._live(service)
        finally:
            figures.cancel()
            _end_within(END_SECONDS)
            http.should_exit = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(serving, CLOSE_SECONDS + 1)
            await service.close()
        return code

    async def _live(self, service: Service) -> int:
        """Start, wait for an end, drain; return the exit code."""
        stopped = asyncio.create_task(self._stop.wait())
        starting = asyncio.create_task(service.start())
        await _first_of(stopped, starting)
        if not starting.done():
            starting.cancel()
            return 0
        try:
            facts = starting.result()
        except (EngineDeadError, KernelgenRuntimeError) as error:
            self.failure = str(error)
            return error.exit_code or 1
        for line in ready_lines(service, facts, self._url, self._started):
            LOG.info(line)
        assert service.link is not None
        ended = service.link.ended
        watching = asyncio.create_task(watch(service.link, self._options.flags.watchdog_timeout))
        await _first_of(stopped, ended)
        if not ended.done():
            await self._drain(service, ended)
        watching.cancel()
        if not ended.done():
            return 0
        self.failure = f"the engine is dead: {ended.result()}"
        LOG.error(self.failure)
        await asyncio.sleep(LINGER_SECONDS)
        self._child.kill()  # one that hangs would not end by itself
        return ended.result().exit_code or 1

    async def _drain(self, service: Service, ended: "asyncio.Future[EngineDeadError]") -> None:
        seconds = self._options.flags.shutdown_timeout
        LOG.info("a signal: nothing new is taken; %s", f"draining for up to {seconds:g} s"
                 if seconds else "what is under way is ended")  # fmt: skip
        drained = asyncio.create_task(service.drain(seconds))
        await _first_of(drained, ended)
        drained.cancel()

    def _signalled(self) -> None:
        self._signals += 1
        if self._signals > 1:
            self._child.kill()
            if self._options.flags.uds:
                with contextlib.suppress(OSError):
                    os.unlink(self._options.flags.uds)
            os._exit(0)
        self._stop.set()

    def _config(self, service: Service) -> uvicorn.Config:
        flags = self._options.flags
        return uvicorn.Config(
            create_app(service),
            http=limited_protocol(flags.max_header_bytes),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=None,  # levels are set already
            access_log=not flags.disable_uvicorn_access_log,
            server_header=False,
            root_path=flags.root_path,
            timeout_graceful_shutdown=int(CLOSE_SECONDS),
            ssl_keyfile=flags.ssl_keyfile,
            ssl_certfile=flags.ssl_certfile,
            ssl_ca_certs=flags.ssl_ca_certs,
            ssl_cert_reqs=flags.ssl_cert_reqs,
        )


async def _first_of(*futures: "asyncio.Future[Any]") -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return made


def _end_within(seconds: float) -> None:
    """End the process after so long, whatever still holds it."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()

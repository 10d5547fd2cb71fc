"""Owns one replica: a service that lives as long as its application, without signals and ports."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from .app import create_app
from .command import options_of
from .link import EngineDeadError
from .service import Service, State

_services: list[Service] = []
"""the services of this process; there is one"""


def replica_app(argv: Sequence[str]) -> Starlette:
    """Return the application of a replica. Its engine starts with it and ends with it."""
    service = Service(options_of(argv))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        _services.append(service)
        try:
            await service.start()
            yield
        finally:
            await service.drain(0.0)
            await service.close()
            _services.remove(service)

    return create_app(service, lifespan)


def check_health() -> None:
    """Raise EngineDeadError where an engine of this process is gone."""
    for service in _services:
        if service.state is State.DEAD:
            raise EngineDeadError("the engine process has ended")

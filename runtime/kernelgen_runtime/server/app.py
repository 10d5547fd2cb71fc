"""Owns the HTTP application: which routes there are, and what becomes of errors."""

import logging
from dataclasses import replace

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Lifespan

from . import generate, routes, scale_out
from .gate import Gate
from .problems import Problem, problem_of
from .replies import problem_reply
from .service import LOG, Service


def create_app(service: Service, lifespan: Lifespan[Starlette] | None = None) -> Starlette:
    """Return the application around a service. Whoever serves it starts and closes the service:
    itself, or by the application's `lifespan`.
    """
    flags = service.flags
    found = [
        Route("/", routes.status_page),
        Route("/v1/completions", generate.completions, methods=["POST"]),
        Route("/v1/chat/completions", generate.chat, methods=["POST"]),
        Route("/v1/models", routes.models),
        Route("/v1/models/{name:path}", routes.model),
        Route("/tokenize", routes.tokenize, methods=["POST"]),
        Route("/detokenize", routes.detokenize, methods=["POST"]),
        Route("/health", routes.health),
        Route("/ping", routes.health, methods=["GET", "POST"]),
        Route("/metrics", routes.metrics),
        Route("/version", routes.version),
        Route("/load", routes.load),
    ]
    if not flags.disable_fastapi_docs:
        found.append(Route("/openapi.json", routes.described))
    if flags.enable_scale_out:
        found += scale_out.ROUTES
    app = Starlette(
        routes=found,
        middleware=_middleware(service),
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error, ClientDisconnect: _gone, Exception: _error},
    )
    for kind in problem_kinds():
        app.add_exception_handler(kind, _told)
    app.state.service = service
    return app


def problem_kinds() -> tuple[type[Exception], ...]:
    """Return the errors that `problem_of` has an answer for."""
    from ..errors import KernelgenRuntimeError
    from .admission import OverloadedError
    from .job import EngineLostError, RefusedError
    from .link import EngineDeadError
    from .problems import ProblemError

    return (
        *(ProblemError, KernelgenRuntimeError, OverloadedError),
        *(RefusedError, EngineDeadError, EngineLostError),
    )


def _middleware(service: Service) -> list[Middleware]:
    flags = service.flags
    found = []
    if flags.allowed_origins:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=flags.allowed_origins,
                allow_methods=flags.allowed_methods,
                allow_headers=flags.allowed_headers,
                allow_credentials=flags.allow_credentials,
            )
        )
    keys, tells = service.options.api_keys, flags.enable_request_id_headers
    found.append(Middleware(Gate, service=service, keys=keys, tells_ids=tells))
    return found


async def _told(request: Request, error: Exception) -> Response:
    problem, service = problem_of(error), request.app.state.service
    if (folder := service.options.folder) is not None:
        # Where the checkpoint lies is nobody's business but ours.
        message = problem.message.replace(f"{folder}/", "").replace(str(folder), "the checkpoint")
        problem = replace(problem, message=message)
    return problem_reply(problem)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = problem_reply(Problem(error.status_code, str(error.detail)))
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it


async def _error(request: Request, error: Exception) -> Response:
    trace = LOG.isEnabledFor(logging.DEBUG)
    LOG.error("%s: %s", type(error).__name__, str(error)[:300], exc_info=error if trace else None)
    return problem_reply(problem_of(error))

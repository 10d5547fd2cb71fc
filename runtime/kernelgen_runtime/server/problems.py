"""Owns what a client is told when something goes wrong: one shape, bounded, without our paths."""

from dataclasses import dataclass
from typing import Any

from ..errors import KernelgenRuntimeError
from ..guide.guide import FAULT
from .admission import RETRY_AFTER_SECONDS, OverloadedError
from .ask import UnknownModelError
from .faults import FieldError
from .job import EngineLostError, RefusedError
from .link import EngineDeadError

MAX_MESSAGE = 4096
_KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class Problem:
    """An HTTP status and its error object."""

    status: int
    message: str
    param: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI clients read it; at most 8 kB of JSON."""
        message = self.message
        if len(message) > MAX_MESSAGE:
            message = message[: MAX_MESSAGE - 1] + "…"
        kind = _KINDS.get(self.status, "BadRequestError")
        return {
            "error": {"message": message, "type": kind, "param": self.param, "code": self.status}
        }

    @property
    def headers(self) -> dict[str, str]:
        """Headers that belong to the status."""
        match self.status:
            case 503:
                return {"retry-after": str(RETRY_AFTER_SECONDS)}
            case 401:
                return {"www-authenticate": "Bearer"}
        return {}


class ProblemError(Exception):
    """An answer that is a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def problem_of(error: Exception) -> Problem:
    """Return what a client is told of `error`. What is no fault of the client has no details."""
    match error:
        case ProblemError():
            return error.problem
        case UnknownModelError():
            return Problem(404, str(error), "model")
        case FieldError():
            return Problem(400, str(error), error.param)
        case OverloadedError():
            return Problem(503, str(error))
        case RefusedError() | KernelgenRuntimeError():
            return Problem(400, str(error))
        case EngineDeadError():
            return Problem(503, "the engine is not running")
        case EngineLostError():
            # What its own grammar ends is the client's to change, however late it shows.
            status = 400 if str(error).startswith(FAULT) else 500
            return Problem(status, f"the request could not be finished: {error}")
    return Problem(500, f"the server failed ({type(error).__name__}); its log says more")

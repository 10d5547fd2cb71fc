"""Owns replicas behind Ray Serve: each is a whole server without the HTTP, which is Ray's."""

from collections.abc import Sequence
from typing import Any

from .command import options_of


def application(argv: Sequence[str], **deployment: Any) -> Any:
    """Return a Ray Serve application of replicas that serve what `argv` says.

    `argv` are the words after `serve` on a command line; `deployment` are options of
    `ray.serve.deployment`: num_replicas, autoscaling_config, ray_actor_options, … Raises
    ArgumentsError for a line that cannot be meant, ImportError without Ray Serve.
    """
    from ray import serve

    options_of(argv)  # a mistake is told here, not by a replica far away
    words = list(argv)

    @serve.deployment(**{"max_ongoing_requests": 1024, **deployment})
    @serve.ingress(lambda: _replica_app(words))
    class Replica:
        """A server process: its engine is a process of its own beside it."""

        def check_health(self) -> None:
            """Raise where the engine is gone; Ray starts another replica then."""
            from .replica import check_health

            check_health()

    return Replica.bind()  # type: ignore[attr-defined]


def _replica_app(argv: list[str]) -> Any:
    from .replica import replica_app

    return replica_app(argv)

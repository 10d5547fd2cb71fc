"""Owns replicas behind Ray Serve: each is a whole server without the HTTP, which is Ray's."""

import argparse
from collections.abc import Sequence
from typing import Any

from .command import add_serve, serve_argv
from .options import ServeOptions, serve_options


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


def options_of(argv: Sequence[str]) -> ServeOptions:
    """Return what the words after `serve` ask for. Raises ArgumentsError."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_serve(parser, None)
    flags = parser.parse_args(serve_argv(argv, None))
    return serve_options(flags, parser.parse_args([flags.artifact]))


def _replica_app(argv: list[str]) -> Any:
    from .replica import replica_app

    return replica_app(argv)

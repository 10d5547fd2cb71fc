"""Owns downloads from the model hub: a config or a whole checkpoint; failures are one line."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelgen.core.errors import KernelgenError, UsageError, quote

_TIMEOUT_S = 6.0
_CHECKPOINT = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
_NO_NETWORK = "download the folder elsewhere and give its path"


def fetch_config(repo: str) -> Path:
    """Path of the config.json of a hub repository; asks the hub for no other file."""
    return _fetch(repo, ("config.json",)) / "config.json"


def fetch_checkpoint(repo: str) -> Path:
    """Folder with the safetensors, config and tokenizer files of a hub repository."""
    return _fetch(repo, _CHECKPOINT)


def _fetch(repo: str, patterns: tuple[str, ...]) -> Path:
    with _explained(repo):
        from huggingface_hub import snapshot_download

        # Unlike the call for one file, this one does not repeat for half a minute without network.
        folder = snapshot_download(repo, allow_patterns=[*patterns], etag_timeout=_TIMEOUT_S)
        if not (Path(folder) / "config.json").is_file():
            raise UsageError("has no config.json", where=f"hub model {quote(repo)}")
        return Path(folder)


@contextmanager
def _explained(repo: str) -> Iterator[None]:
    """Any way in which the hub says no, as one line."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # what matters is raised
    try:
        yield
    except KernelgenError:
        raise
    except Exception as error:  # its classes come from several HTTP libraries and change
        raise _meaning(repo, error) from error


def _meaning(repo: str, error: Exception) -> UsageError:
    from huggingface_hub import constants, errors

    where = f"hub model {quote(repo)}"
    if isinstance(error, errors.GatedRepoError):
        return UsageError("asks for a login", where=where, hint="hf auth login, then repeat")
    if isinstance(error, errors.RepositoryNotFoundError):
        return UsageError("does not exist, or is private", where=where)
    if isinstance(error, errors.OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        return UsageError("is not in the local cache and HF_HUB_OFFLINE is set", where=where)
    if isinstance(error, errors.HfHubHTTPError) and error.response is not None:
        status = error.response.status_code
        return UsageError(f"the hub answered {status}", where=where, hint=_NO_NETWORK)
    return UsageError("the hub cannot be reached from here", where=where, hint=_NO_NETWORK)

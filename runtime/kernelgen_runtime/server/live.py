"""Owns what the engine process knows of a request beside the engine: its key and what was told."""

from dataclasses import dataclass

from ..schedule.request import Request
from .wire import End, First, Update


@dataclass(eq=False)
class Live:
    """A request that the API process waits for."""

    key: int
    request: Request
    told: int = 0
    """tokens of the answer that were sent"""

    def update(self) -> Update:
        """Return what is new since the last call."""
        request, told = self.request, self.told
        ids = request.tokens[request.prompt_tokens + told :]
        self.told += len(ids)
        logprobs, masks = [], []
        if request.params.tells_logprobs:
            logprobs = request.logprobs[told : self.told]
        if request.params.return_sampling_mask:
            masks = [mask.tolist() for mask in request.masks[told : self.told]]
        first = self._first() if ids and not told else None
        return Update(self.key, ids, first, self._end(), logprobs, masks)

    def _first(self) -> First:
        request = self.request
        prompt = request.prompt_logprobs if request.params.prompt_logprobs is not None else None
        times = request.timings
        return First(request.cached_tokens, times.scheduled, times.first_token, prompt)

    def _end(self) -> End | None:
        request = self.request
        if request.finish_reason is None:
            return None
        reason = request.stop_reason if isinstance(request.stop_reason, int) else None
        error = request.error
        if request.finish_reason == "error" and not error:
            error = "the step that computed it failed"
        return End(request.finish_reason, reason, error)

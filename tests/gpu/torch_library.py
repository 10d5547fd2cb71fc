"""The toy model as torch operations on a GPU: a step is launched, captured and replayed for real.

It keeps token ids in the pages it is given and reads them back through the block tables, so that a
wrong page, a late copy of `args` or an overwritten id changes the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from runtime_fakes import PAGE, VOCAB, Groups, target_json

PRIME = 999_983
FACTOR = 31


def hashed(contexts: Sequence[Sequence[int]]) -> int:
    """The id after a token, from what each group lets it see: the rule of the library."""
    total = 0
    for context in contexts:
        for place, token in enumerate(reversed(context)):
            total += (token + 7) * pow(FACTOR, place, PRIME)
    return total % PRIME % VOCAB


def following(prompt: Sequence[int], count: int, groups: Groups) -> list[int]:
    """The ids that the library's rule gives after `prompt`."""
    tokens = list(prompt)
    for _ in range(count):
        seen = [tokens if window is None else tokens[-window:] for _, window in groups]
        tokens.append(hashed(seen))
    return tokens[len(prompt) :]


class TorchLibrary:
    """`StepLibrary` in torch; reads `args` on the device and never looks at a value of it."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self.values = target_json(manifest)
        self.buffers: dict[str, torch.Tensor] = {}
        self.fields = {f["name"]: f for f in self.values["args"]["fields"]}
        self.powers = torch.zeros(0)

    def load(self, plan_id: int) -> None:
        """Everything is loaded."""

    def set_threads(self, count: int) -> None:
        """It has none."""

    def read_bandwidth(self, seconds: float) -> float | None:
        return None

    def bind(self, name: str, tensor: torch.Tensor) -> None:
        if name == "cache":
            pages = self.values["cache"]["page_bytes"]
            assert tensor.shape[1] == pages and tensor.data_ptr() % 256 == 0
            # Made here: inside a capture nothing may come from the host.
            places = PAGE * self.values["args"]["max_pages"]
            powers = [pow(FACTOR, i, PRIME) for i in range(places)]
            self.powers = torch.tensor(powers, device=tensor.device)
        self.buffers[name] = tensor

    def step(self, plan_id: int, args: torch.Tensor) -> None:
        plan = next(plan for plan in self.values["plans"] if plan["id"] == plan_id)
        counts = self._field(args, "counts").long()
        token = torch.arange(plan["size"], device=args.device)
        starts, slots = (self._field(args, n).long() for n in ("row_query_start", "row_slot"))
        # Only the used prefix of a field is written: what lies behind the rows of the step is old.
        beyond = torch.arange(len(starts), device=args.device) > counts[1]
        starts = torch.where(beyond, args.numel(), starts)
        row = (torch.searchsorted(starts, token, right=True) - 1).clamp(0, len(slots) - 1)
        lengths = self._field(args, "row_seq_len").long()
        is_token = (token < counts[0]) & (slots[row] >= 0)
        position = lengths[row] - starts[row + 1] + token
        ids = self._field(args, "token_ids").long()[: plan["size"]]
        last = self.buffers["last_sampled"].long()[slots[row].clamp(min=0)]
        ids = torch.where(ids < 0, last, ids)
        total = torch.zeros_like(token)
        for group in self.values["cache"]["groups"]:
            table = self._field(args, f"block_table.{group['name']}").long()
            total += self._group(table[row], group, is_token, position, ids)
        self._answer(args, counts, row, slots, total % PRIME % VOCAB)

    def _group(
        self,
        table: torch.Tensor,
        group: Any,
        is_token: torch.Tensor,
        position: torch.Tensor,
        ids: torch.Tensor,
    ) -> torch.Tensor:
        """Store the new tokens of one group, then return the hash of what each of them sees."""
        cells = self.buffers["cache"].view(torch.int32).view(-1, 2)  # id, position
        position = position.clamp(min=0)
        page = table.gather(1, (position // PAGE)[:, None])[:, 0]
        cell = torch.where(is_token, page * PAGE + position % PAGE, 0)
        new = torch.stack([ids, position], 1).int()
        cells[cell] = torch.where(is_token[:, None], new, cells[cell])
        place = torch.arange(table.shape[1] * PAGE, device=table.device)
        read = cells[table.repeat_interleave(PAGE, 1) * PAGE + place % PAGE].long()
        back = position[:, None] - place
        visible = (back >= 0) & (back < (group["window"] or 1 << 30))
        # A page that was taken while it is read holds other positions: the hash tells.
        value = (read[..., 0] + 7 + 1000 * (read[..., 1] - place)) * self.powers[back.clamp(min=0)]
        return torch.where(visible, value, 0).sum(1)

    def _answer(
        self,
        args: torch.Tensor,
        counts: torch.Tensor,
        row: torch.Tensor,
        slots: torch.Tensor,
        chosen: torch.Tensor,
    ) -> None:
        wanted = self._field(args, "logit_token").long().clamp(0, len(row) - 1)
        target = self._field(args, "logit_row").long()
        line = torch.arange(len(wanted), device=args.device)
        is_asked, ids = line < counts[2], chosen[wanted]
        logits = self.buffers["logits"]
        asked = min(len(logits), len(line))
        one_hot = (ids[:asked, None] == torch.arange(VOCAB, device=args.device)).float()
        logits[:asked] = torch.where(is_asked[:asked, None], one_hot, logits[:asked])
        samples = is_asked & (target >= 0)
        sampled = self.buffers["sampled"]
        sampled.copy_(torch.where(is_asked, torch.where(samples, ids, -1).int(), sampled))
        last = self.buffers["last_sampled"]
        slot = slots[target.clamp(min=0)]
        # One slot more than there are, for rows that ask nothing.
        kept = torch.cat([last, last[:1]])
        kept[torch.where(samples & (slot >= 0), slot, len(last))] = ids.int()
        last.copy_(kept[: len(last)])

    def _field(self, args: torch.Tensor, name: str) -> torch.Tensor:
        field = self.fields[name]
        size = 1
        for n in field["shape"]:
            size *= n
        return args[field["offset"] : field["offset"] + size].view(field["shape"])

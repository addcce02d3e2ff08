"""Feeding a model token by token: from kept caches where it allows that, by re-encoding where it does not."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from trl_agent._compat import DynamicCache, DynamicLayer, cache_argument
from trl_agent.generation.kv_arena import KVArena
from trl_agent.generation.protocol import GenerationRequest

_ROUND = 8  # columns read are rounded up to this, so that attention kernels see aligned masks


class Decoder(Protocol):
    """One batch from its contexts to its last token. Batch entries are called positions, 0..B-1."""

    def begin(self, requests: Sequence[GenerationRequest], room: int) -> tuple[list[int], torch.Tensor]:
        """Encode the contexts, with room for `room` tokens after each.

        Returns:
            Which request is at each position, and the logits of the last token, (B, V).
        """
        ...

    def step(self, tokens: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
        """Append a token (B,) to each position; return the logits after it, (B, V). Dead positions do not grow."""
        ...

    def drop(self, alive: list[bool]) -> list[int] | None:
        """Leave out the dead positions. Returns the old position of each new one, or None if nothing changed."""
        ...

    def end(self, requests: Sequence[GenerationRequest], sampled: Sequence[list[int]]) -> None:
        """Take note of what each request has now."""
        ...


class ArenaDecoder:
    """Decodes from a `KVArena`: only tokens that the arena does not hold yet are encoded.

    Args:
        model: a causal language model that takes 4-D masks, `position_ids` and a cache (see `why_no_arena`).
        max_prefill_tokens: bound on the tokens of one forward pass over contexts, padding included.
        mask_dtype: type of the attention scores.
    """

    def __init__(
        self,
        model: Any,
        arena: KVArena,
        *,
        pad_token_id: int,
        max_prefill_tokens: int,
        mask_dtype: torch.dtype,
    ) -> None:
        self.model = model
        self.arena = arena
        self.pad_token_id = pad_token_id
        self.max_prefill_tokens = max_prefill_tokens
        self.mask_dtype = mask_dtype
        self.device: torch.device = model.device
        self._cache_name = cache_argument(model)
        self._keep_last = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._next: torch.Tensor = torch.empty(0, dtype=torch.long)  # column of each position's next token
        self._longest = 0  # of all positions, the highest column written so far, plus one

    def begin(self, requests: Sequence[GenerationRequest], room: int) -> tuple[list[int], torch.Tensor]:
        starts = [self._reuse(request) for request in requests]
        longest = max(len(request.input_ids) for request in requests)
        self.arena.place([request.key for request in requests], longest + room)
        order = sorted(range(len(requests)), key=lambda i: self.arena.row_of(requests[i].key))
        deltas = [list(requests[i].input_ids[starts[i] :]) for i in order]
        first = [starts[i] for i in order]
        parts, where = [], []
        for bucket in bucket_by_length([len(delta) for delta in deltas], self.max_prefill_tokens):
            parts.append(
                self._encode(bucket, [deltas[p] for p in bucket], [first[p] for p in bucket], len(order))
            )
            where += bucket
        logits = torch.cat(parts)[torch.tensor(where, device=self.device).argsort()]
        self._next = torch.tensor([len(requests[i].input_ids) for i in order], device=self.device)
        self._longest = longest
        return order, logits

    def step(self, tokens: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(len(tokens), device=self.device)
        columns = self._next[:, None]
        self._longest += 1
        logits = self._forward(tokens[:, None], rows, columns, columns, self._longest, front=True)
        self._next = self._next + alive.long()
        return logits

    def drop(self, alive: list[bool]) -> list[int] | None:
        living = sum(alive)
        origin = list(range(len(alive)))
        back = [p for p in range(living, len(alive)) if alive[p]]
        for front in range(living):
            if not alive[front]:
                p = back.pop()
                self.arena.swap(front, p, self._longest)
                origin[front] = p
        origin = origin[:living]
        self._next = self._next[torch.tensor(origin, device=self.device)]
        self._longest = int(self._next.max())
        return origin

    def end(self, requests: Sequence[GenerationRequest], sampled: Sequence[list[int]]) -> None:
        # The last token was sampled but never fed to the model.
        for request, ids in zip(requests, sampled):
            self.arena.keep(request.key, [*request.input_ids, *ids[:-1]])

    def _reuse(self, request: GenerationRequest) -> int:
        """How many tokens of the request's context the arena holds. At least the last one is encoded anew."""
        known, ids = self.arena.known(request.key), request.input_ids
        shared = min(len(known), len(ids) - 1)
        if list(ids[:shared]) != known[:shared]:
            shared = next(t for t in range(shared) if ids[t] != known[t])
        if known:
            self.arena.keep(request.key, known[:shared])
        return shared

    def _encode(
        self, bucket: list[int], deltas: list[list[int]], starts: list[int], batch: int
    ) -> torch.Tensor:
        """Encode new context tokens of the positions `bucket`; return the logits of each one's last, (b, V).

        Shorter deltas are padded on the left, so that every last token is in the last column of the queries.
        """
        width = max(map(len, deltas))
        padded = [[self.pad_token_id] * (width - len(delta)) + delta for delta in deltas]
        ids = torch.tensor(padded, device=self.device)
        start = torch.tensor(starts, device=self.device)[:, None]
        padding = torch.tensor([width - len(delta) for delta in deltas], device=self.device)[:, None]
        offset = torch.arange(width, device=self.device)[None] - padding
        columns = torch.where(offset >= 0, start + offset, self.arena.trash_column)
        positions = (start + offset).clamp(min=0)
        rows = torch.tensor(bucket, device=self.device)
        length = max(s + len(delta) for s, delta in zip(starts, deltas))
        chunk = max(1, self.max_prefill_tokens // len(bucket))
        front = bucket == list(range(len(bucket)))
        for begin in range(0, width, chunk):
            part = slice(begin, begin + chunk)
            logits = self._forward(
                ids[:, part], rows, columns[:, part], positions[:, part], length, front=front
            )
        return logits

    def _forward(
        self,
        ids: torch.Tensor,
        rows: torch.Tensor,
        columns: torch.Tensor,
        positions: torch.Tensor,
        length: int,
        *,
        front: bool,
    ) -> torch.Tensor:
        length = min(-(-length // _ROUND) * _ROUND, self.arena.trash_column)
        self.arena.open_window(rows, columns, length, front=front)
        seen = torch.arange(length, device=self.device) <= positions[:, :, None]  # (B, Q, length)
        # Additive, because every attention takes that form, and because sdpa would convert a boolean mask anew in
        # every layer. Every query sees column 0, so no row of scores is empty.
        mask = torch.zeros(seen.shape, dtype=self.mask_dtype, device=self.device)
        mask.masked_fill_(~seen, torch.finfo(self.mask_dtype).min)
        last: dict[str, Any] = {"logits_to_keep": 1} if self._keep_last else {}
        output = self.model(
            input_ids=ids,
            attention_mask=mask[:, None],
            position_ids=positions,
            use_cache=True,
            **{self._cache_name: self.arena},
            **last,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits


class ReencodingDecoder:
    """Encodes every context whole, with the model's own cache for the tokens of one action, or with none at all.

    Contexts of different lengths are padded on the left; models that carry a recurrent state get batches of one
    length only (see `batches`).
    """

    def __init__(self, model: Any, *, pad_token_id: int) -> None:
        self.model = model
        self.pad_token_id = pad_token_id
        self.device: torch.device = model.device
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = cache_argument(model) if cache_argument(model) in parameters else None
        self._takes_positions = "position_ids" in parameters
        self._keep_last = "logits_to_keep" in parameters
        self._equal_lengths = bool(getattr(model, "_is_stateful", False)) or not self._takes_positions
        self._ids = self._mask = torch.empty(0, 0, dtype=torch.long)
        self._cache: Any = None

    def batches(self, requests: Sequence[GenerationRequest]) -> list[list[int]]:
        """Split the requests into batches that can be encoded together, as indices."""
        if not self._equal_lengths:
            return [list(range(len(requests)))]
        by_length: dict[int, list[int]] = {}
        for i, request in enumerate(requests):
            by_length.setdefault(len(request.input_ids), []).append(i)
        return list(by_length.values())

    def begin(self, requests: Sequence[GenerationRequest], room: int) -> tuple[list[int], torch.Tensor]:
        longest = max(len(request.input_ids) for request in requests)
        pads = [longest - len(request.input_ids) for request in requests]
        self._ids = torch.tensor(
            [[self.pad_token_id] * pad + list(r.input_ids) for pad, r in zip(pads, requests)],
            device=self.device,
        )
        self._mask = (
            torch.arange(longest, device=self.device)[None] >= torch.tensor(pads, device=self.device)[:, None]
        ).long()
        self._cache = None
        return list(range(len(requests))), self._forward(self._ids)

    def step(self, tokens: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
        self._ids = torch.cat([self._ids, tokens[:, None]], dim=1)
        self._mask = torch.cat([self._mask, torch.ones_like(tokens)[:, None]], dim=1)
        return self._forward(tokens[:, None] if self._cache is not None else self._ids)

    def drop(self, alive: list[bool]) -> list[int] | None:
        return None

    def end(self, requests: Sequence[GenerationRequest], sampled: Sequence[list[int]]) -> None:
        self._cache = None

    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        arguments: dict[str, Any] = {"use_cache": self._cache_name is not None}
        if not self._equal_lengths:
            arguments["attention_mask"] = self._mask
        if self._takes_positions:
            arguments["position_ids"] = (self._mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        if self._keep_last:
            arguments["logits_to_keep"] = 1
        if self._cache_name is not None and self._cache is not None:
            arguments[self._cache_name] = self._cache
        output = self.model(input_ids=ids, **arguments)
        if self._cache_name is not None:
            self._cache = output.get(self._cache_name)
        logits: torch.Tensor = output.logits[:, -1]
        return logits


def bucket_by_length(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group indices so that padding is bounded: in a group, no length is under half the longest.

    Short ones are grouped all the same where the padding costs less than one more forward pass would.

    Args:
        max_tokens: bound on (longest length) x (members) of a group; a group of one may exceed it.

    Returns:
        Groups of indices, each ascending.
    """
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fits = bool(groups) and (len(groups[-1]) + 1) * longest <= max_tokens
        if fits and (2 * lengths[index] >= longest or longest <= 16):
            groups[-1].append(index)
        else:
            groups.append([index])
            longest = lengths[index]
    return [sorted(group) for group in groups]


def why_no_arena(model: Any) -> str | None:
    """Say why `model` cannot decode from a `KVArena`, or None if it can."""
    parameters = inspect.signature(model.forward).parameters
    for name in ("attention_mask", "position_ids", cache_argument(model)):
        if name not in parameters:
            return f"its forward takes no {name}"
    config = model.config.get_text_config(decoder=True)
    kinds = {type(layer).__name__ for layer in DynamicCache(config=config).layers} - {DynamicLayer.__name__}
    if kinds:
        return f"its layers keep {', '.join(sorted(kinds))}, not plain keys and values"
    attention = config._attn_implementation
    if attention not in ("sdpa", "eager"):
        return f"{attention} attention takes no mask of rows of different lengths; load it with sdpa"
    return None

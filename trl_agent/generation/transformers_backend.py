"""Generation with a transformers model in this process, with each conversation's KV cache kept across turns."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from trl_agent.generation.decoders import ArenaDecoder, Decoder, ReencodingDecoder, why_no_arena
from trl_agent.generation.kv_arena import KVArena
from trl_agent.generation.protocol import GenerationRequest, GenerationResult, SamplingParams
from trl_agent.generation.sampling import choose_tokens, row_uniforms

logger = logging.getLogger(__name__)

_DROP_AT = 0.75  # finished rows leave the batch when at most this share of it is still at work


class TransformersBackend:
    """Samples actions for many conversations at once; implements `GenerationBackend`.

    A conversation's keys and values stay on the device between its turns, so a turn encodes the new observation
    only. All rows take a step in one forward pass, whatever their lengths, with nothing padded on the left.
    Dropout is off while it works and every module's mode is restored.

    Args:
        model: a causal language model or a PEFT model around one. Trained elsewhere; call `on_weights_changed`
            after every update.
        pad_token_id: fills ragged rows. Never compared with anything, so it may be the end-of-sequence token.
        stop_token_ids: tokens that end an action.
        max_batch_rows: most conversations in one forward pass.
        max_prefill_tokens: most context tokens in one forward pass, padding included.
        max_kept_rows: most conversations whose cache is kept; at least `max_batch_rows`. The one unused for longest
            is forgotten first and encoded again when it comes back.
        keep_cache: False re-encodes each conversation every turn.
        autocast_dtype: run under `torch.autocast` of this type; None = as the caller does (in the model's own
            type, or under the autocast that is on).

    A model whose cache cannot be kept (sliding windows, recurrent states, attention without masks) is run by
    re-encoding, with a warning that says why.
    """

    def __init__(
        self,
        model: Any,
        *,
        pad_token_id: int,
        stop_token_ids: Sequence[int],
        max_batch_rows: int = 128,
        max_prefill_tokens: int = 8192,
        max_kept_rows: int = 256,
        keep_cache: bool = True,
        autocast_dtype: torch.dtype | None = None,
    ) -> None:
        if not stop_token_ids:
            raise ValueError(
                "stop_token_ids is empty: no action could ever end. Pass ChatFormat.stop_token_ids"
            )
        for name, value in (("max_batch_rows", max_batch_rows), ("max_prefill_tokens", max_prefill_tokens)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if max_kept_rows < max_batch_rows:
            raise ValueError(
                f"max_kept_rows ({max_kept_rows}) must be at least max_batch_rows ({max_batch_rows})"
            )
        self.model = model
        self.pad_token_id = pad_token_id
        self.stop_token_ids = list(stop_token_ids)
        self.max_batch_rows = max_batch_rows
        self.max_prefill_tokens = max_prefill_tokens
        self.max_kept_rows = max_kept_rows
        self.keep_cache = keep_cache
        self.autocast_dtype = autocast_dtype
        self._inner = _without_peft(model)
        self._arena: KVArena | None = None
        self._checked = False

    # ---- GenerationBackend ----------------------------------------------------------------------------------
    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> list[GenerationResult]:
        """Sample one action per request; results in the order of the requests.

        Raises:
            ValueError: a request has no tokens, shares its key with another, or does not fit the model.
            FloatingPointError: the model's logits are NaN or infinite.
        """
        self._check(requests, sampling)
        if not requests:
            return []
        results: list[GenerationResult | None] = [None] * len(requests)
        with self._inference():
            decoder = self._decoder()
            for batch in self._batches(requests, decoder):
                part = [requests[i] for i in batch]
                for i, result in zip(batch, self._run(part, sampling, decoder)):
                    results[i] = result
                if not self.keep_cache:
                    for request in part:
                        self.release(request.key)
        return [result for result in results if result is not None]

    def release(self, key: Hashable) -> None:
        """Forget what is kept for a conversation that ended."""
        if self._arena is not None:
            self._arena.release(key)

    def on_weights_changed(self) -> None:
        """Forget everything computed with the old weights and give the memory back."""
        if self._arena is not None:
            self._arena.clear()

    # ---- the loop over tokens -------------------------------------------------------------------------------
    def _run(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams, decoder: Decoder
    ) -> list[GenerationResult]:
        budgets = [_budget(request, sampling) for request in requests]
        steps = max(budgets)
        order, logits = decoder.begin(requests, steps)
        device = logits.device
        # Position p of the batch works for request owner[p]. Rows move when finished ones leave.
        owner = torch.tensor(order, device=device)
        limits = torch.tensor(budgets, device=device)[owner]
        uniforms = self._uniforms(requests, sampling, steps, device)[owner]
        stops = torch.tensor(self.stop_token_ids, device=device)
        tokens_out = torch.zeros(len(requests), steps, dtype=torch.long, device=device)
        logprobs_out = torch.zeros(len(requests), steps, device=device)
        lengths = torch.zeros(len(requests), dtype=torch.long, device=device)
        alive = torch.ones(len(requests), dtype=torch.bool, device=device)
        for t in range(steps):
            tokens, logprobs = choose_tokens(logits, uniforms[:, t], sampling)
            tokens_out[owner, t], logprobs_out[owner, t] = tokens, logprobs
            lengths[owner] += alive.long()
            alive = alive & ~torch.isin(tokens, stops) & (t + 1 < limits)
            working = int(alive.sum())
            if working == 0:
                break
            if working <= _DROP_AT * len(alive):
                origin = decoder.drop(alive.tolist())
                if origin is not None:
                    index = torch.tensor(origin, device=device)
                    owner, limits, uniforms = owner[index], limits[index], uniforms[index]
                    tokens, alive = tokens[index], alive[index]
            logits = decoder.step(tokens, alive)
        return self._finish(requests, decoder, tokens_out, logprobs_out, lengths)

    def _finish(
        self,
        requests: Sequence[GenerationRequest],
        decoder: Decoder,
        tokens: torch.Tensor,
        logprobs: torch.Tensor,
        lengths: torch.Tensor,
    ) -> list[GenerationResult]:
        counts = lengths.tolist()
        sampled = [row[:n] for row, n in zip(tokens.tolist(), counts)]
        decoder.end(requests, sampled)
        return [
            GenerationResult(ids, row[:n], finished=ids[-1] in self.stop_token_ids)
            for ids, row, n in zip(sampled, logprobs.tolist(), counts)
        ]

    def _uniforms(
        self,
        requests: Sequence[GenerationRequest],
        sampling: SamplingParams,
        steps: int,
        device: torch.device,
    ) -> torch.Tensor:
        """Every row's random numbers for the whole action, (B, steps)."""
        if sampling.temperature == 0:
            return torch.zeros(len(requests), steps, device=device)
        drawn = np.stack([row_uniforms(request.rng_key, steps) for request in requests])
        dtype = torch.float32 if device.type == "mps" else torch.float64
        return torch.from_numpy(drawn).to(device=device, dtype=dtype)

    # ---- how the model is run -------------------------------------------------------------------------------
    def _decoder(self) -> ArenaDecoder | ReencodingDecoder:
        if not self._checked:
            self._arena = self._make_arena()
            self._checked = True
        if self._arena is not None and self._arena.kv_dtype != self._autocast():
            self._arena = self._new_arena(self.max_kept_rows)
        if self._arena is None:
            return ReencodingDecoder(self._inner, pad_token_id=self.pad_token_id)
        return self._arena_decoder(self._arena)

    def _arena_decoder(self, arena: KVArena) -> ArenaDecoder:
        return ArenaDecoder(
            self._inner,
            arena,
            pad_token_id=self.pad_token_id,
            max_prefill_tokens=self.max_prefill_tokens,
            mask_dtype=self._score_dtype(),
        )

    def _new_arena(self, max_rows: int) -> KVArena:
        layers = self._inner.config.get_text_config(decoder=True).num_hidden_layers
        return KVArena(layers, max_rows, dtype=self._autocast())

    def _autocast(self) -> torch.dtype | None:
        """The autocast type in force, or None."""
        device = self._inner.device.type
        if self.autocast_dtype is not None or not torch.is_autocast_enabled(device):
            return self.autocast_dtype
        return torch.get_autocast_dtype(device)

    def _score_dtype(self) -> torch.dtype:
        """Type of the attention scores."""
        dtype: torch.dtype = self._autocast() or self._inner.dtype
        return dtype

    def _make_arena(self) -> KVArena | None:
        reason = why_no_arena(self._inner) or self._probe()
        if reason is None:
            return self._new_arena(self.max_kept_rows)
        if self.keep_cache:
            logger.warning(
                "The KV cache of %s is not kept across turns (%s): each turn encodes its whole conversation again.",
                type(self._inner).__name__,
                reason,
            )
        return None

    def _probe(self) -> str | None:
        """Decode two short rows of different lengths with and without an arena and compare the logits."""
        size = self._inner.get_input_embeddings().num_embeddings
        rows = [[(7 * t + 3) % size for t in range(6)], [(5 * t + 2) % size for t in range(3)]]
        decoder = self._arena_decoder(self._new_arena(2))
        alive = torch.ones(2, dtype=torch.bool, device=self._inner.device)
        requests = [GenerationRequest(i, ids[:-1], (0,)) for i, ids in enumerate(rows)]
        try:
            order, _ = decoder.begin(requests, 1)
            logits = decoder.step(
                torch.tensor([rows[i][-1] for i in order], device=self._inner.device), alive
            )
        except (
            TypeError,
            ValueError,
            RuntimeError,
            IndexError,
            AttributeError,
            NotImplementedError,
        ) as error:
            # The model is somebody else's code; whatever it dislikes about masks or caches ends up here.
            return f"it failed on a cache with rows of different lengths: {error}"
        for position, i in enumerate(order):
            plain = self._inner(input_ids=torch.tensor([rows[i]], device=self._inner.device), use_cache=False)
            expected, got = plain.logits[0, -1].float(), logits[position].float()
            coarse = torch.finfo(self._score_dtype()).eps > 1e-5
            tolerance = (0.1 if coarse else 1e-3) * max(1e-6, float(expected.abs().max()))
            if float((expected - got).abs().max()) > tolerance:
                return "its logits differ when rows of different lengths share a cache"
        return None

    def _batches(
        self, requests: Sequence[GenerationRequest], decoder: ArenaDecoder | ReencodingDecoder
    ) -> Iterator[list[int]]:
        groups = (
            decoder.batches(requests)
            if isinstance(decoder, ReencodingDecoder)
            else [list(range(len(requests)))]
        )
        for group in groups:
            for begin in range(0, len(group), self.max_batch_rows):
                yield group[begin : begin + self.max_batch_rows]

    @contextlib.contextmanager
    def _inference(self) -> Iterator[None]:
        """No gradients, no dropout; every module's mode as it was afterwards."""
        training = [module for module in self.model.modules() if module.training]
        device = self._inner.device.type
        autocast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self.autocast_dtype is not None:
            autocast = torch.autocast(device, dtype=self.autocast_dtype)
        self.model.eval()
        try:
            with torch.no_grad(), autocast:
                yield
        finally:
            for module in training:
                module.training = True

    def _check(self, requests: Sequence[GenerationRequest], sampling: SamplingParams) -> None:
        if len({request.key for request in requests}) != len(requests):
            raise ValueError("two requests of one call share a key: each conversation needs a key of its own")
        limit = getattr(self._inner.config.get_text_config(decoder=True), "max_position_embeddings", None)
        for request in requests:
            if not request.input_ids:
                raise ValueError(f"request {request.key!r} has no input_ids")
            if _budget(request, sampling) < 1:
                raise ValueError(f"request {request.key!r}: max_new_tokens must be at least 1")
            needed = len(request.input_ids) + _budget(request, sampling)
            if limit is not None and needed > limit:
                raise ValueError(
                    f"request {request.key!r} needs {needed} positions ({len(request.input_ids)} of context), but "
                    f"the model has {limit} (max_position_embeddings): lower max_length or max_new_tokens"
                )


def _budget(request: GenerationRequest, sampling: SamplingParams) -> int:
    return request.max_new_tokens if request.max_new_tokens is not None else sampling.max_new_tokens


def _without_peft(model: Any) -> Any:
    """The transformers model that a PEFT model wraps: adapters live inside its layers and stay in force."""
    if not hasattr(model, "peft_config"):
        return model
    if getattr(model.active_peft_config, "is_prompt_learning", False):
        raise ValueError(
            "a policy with prompt-learning adapters (prompt or prefix tuning) cannot generate here, because its "
            "virtual tokens exist only in PEFT's own forward: use LoRA"
        )
    return model.get_base_model()

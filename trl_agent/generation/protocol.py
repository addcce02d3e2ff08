"""What a generation back end is: token ids in, token ids and logprobs out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens. `temperature=0` is greedy. `top_p=1` and `top_k=0` switch the filters off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 64

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0, got {self.top_k}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")


@dataclass(frozen=True)
class GenerationRequest:
    """One conversation that wants its next action.

    key: names the conversation. A back end may keep what it computed for it (KV cache) until `release`.
    input_ids: everything so far. As a rule it extends what the same key had before; where old observations were
        left out it does not. A back end compares the tokens and reuses no more than their common beginning.
    rng_key: (seed, update, episode, turn): the only source of randomness for this action, so that the sample
        does not depend on which other requests share the batch.
    max_new_tokens: bound for this action; None = the sampling parameters' own.
    """

    key: Hashable
    input_ids: Sequence[int]
    rng_key: tuple[int, ...]
    max_new_tokens: int | None = None


@dataclass(frozen=True)
class GenerationResult:
    """The sampled tokens, stop token included.

    logprobs: one a token, in nats, of the temperature-scaled distribution (temperature 1 when greedy), never
        renormalised for top-p or top-k, so that the trainer can recompute them.
    finished: True when a stop token was sampled, False when the token limit cut the action.
    """

    token_ids: list[int]
    logprobs: list[float]
    finished: bool


class GenerationBackend(Protocol):
    """Samples actions for many conversations at once."""

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingParams
    ) -> list[GenerationResult]:
        """Sample one action per request; results in the order of the requests."""
        ...

    def release(self, key: Hashable) -> None:
        """Forget what is kept for a conversation that ended."""
        ...

    def on_weights_changed(self) -> None:
        """Forget everything computed with the old weights."""
        ...

"""Choosing the next token of every row at once, each row from its own random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from trl_agent.generation.protocol import SamplingParams


def row_uniforms(rng_key: Sequence[int], count: int) -> np.ndarray:
    """Return `count` numbers in [0, 1) that depend on `rng_key` alone, shape (count,), float64.

    A shorter draw is the beginning of a longer one.
    """
    # SeedSequence takes no negative numbers; two's complement keeps distinct keys distinct.
    entropy = [int(part) % 2**64 for part in rng_key]
    # The length goes in as well: SeedSequence pads with zeros, so (1,) and (1, 0) would be the same.
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([len(entropy), *entropy]))).random(
        count
    )


def choose_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor, sampling: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose one token a row by inverting the cumulative distribution at that row's random number.

    Args:
        logits: (B, V), of the last position.
        uniforms: (B,), in [0, 1). Not looked at when greedy.

    Returns:
        Token ids (B,) and their logprobs (B,) in nats, float32: of the temperature-scaled distribution (of
        temperature 1 when greedy), not renormalised for top-k or top-p.

    Raises:
        FloatingPointError: the logits of a row are NaN or infinite.
    """
    logits = logits.float()
    if sampling.temperature > 0 and sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    if sampling.temperature == 0:
        tokens = logits.argmax(dim=-1)
    else:
        tokens = _invert_cdf(_filtered(logprobs.exp(), sampling), uniforms)
    chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
    if not bool(torch.isfinite(chosen).all()):
        raise FloatingPointError(
            "the policy's logits are NaN or infinite, so no token can be sampled: the weights have diverged. "
            "Lower the learning rate or the clip range, or train in bf16 instead of fp16"
        )
    return tokens, chosen


def _filtered(probs: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Set what top-k and top-p leave out to 0; the rest is not renormalised. (B, V) -> (B, V)."""
    vocabulary = probs.shape[-1]
    if 0 < sampling.top_k < vocabulary:
        floor = probs.topk(sampling.top_k, dim=-1).values[:, -1:]
        probs = torch.where(probs >= floor, probs, 0.0)
    if sampling.top_p < 1:
        ordered, index = probs.sort(dim=-1, descending=True, stable=True)
        # A token stays while those before it hold less than top_p, so the first always does.
        total = ordered.sum(dim=-1, keepdim=True)
        keep = ordered.cumsum(dim=-1) - ordered < sampling.top_p * total
        probs = torch.zeros_like(probs).scatter(-1, index, torch.where(keep, ordered, 0.0))
    return probs


def _invert_cdf(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Smallest token whose cumulative probability exceeds the row's number. Tokens of probability 0 never win."""
    # MPS has no float64; elsewhere it keeps the tail of a large vocabulary exact.
    dtype = torch.float32 if probs.device.type == "mps" else torch.float64
    cdf = probs.to(dtype).cumsum(dim=-1)
    total = cdf[:, -1:]
    target = torch.minimum(
        uniforms[:, None].to(dtype) * total, torch.nextafter(total, torch.zeros_like(total))
    )
    tokens = torch.searchsorted(cdf, target, right=True)[:, 0]
    return tokens.clamp(max=probs.shape[-1] - 1)

"""Tiny models and trajectories that tests build from nothing: no hub, no files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from trl_agent.trajectory import Segment, Trajectory, Turn

VOCAB_SIZE = 67
PAD_TOKEN_ID = 0


def tiny_llama_config(**overrides: Any) -> LlamaConfig:
    """Two layers, width 32, grouped heads, rotary positions."""
    settings: dict[str, Any] = dict(  # noqa: C408
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=PAD_TOKEN_ID,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    return LlamaConfig(**(settings | overrides))


def tiny_gpt2_config(**overrides: Any) -> GPT2Config:
    """Two layers, width 32, learned absolute positions, tied embeddings, no dropout."""
    settings: dict[str, Any] = dict(  # noqa: C408
        vocab_size=VOCAB_SIZE,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=256,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        pad_token_id=PAD_TOKEN_ID,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    )
    return GPT2Config(**(settings | overrides))


def tiny_llama(seed: int = 0, **overrides: Any) -> LlamaForCausalLM:
    """A randomly initialised `tiny_llama_config` model; the same seed gives the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(tiny_llama_config(**overrides))


def tiny_gpt2(seed: int = 0, **overrides: Any) -> GPT2LMHeadModel:
    """A randomly initialised `tiny_gpt2_config` model; the same seed gives the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GPT2LMHeadModel(tiny_gpt2_config(**overrides))


def make_trajectory(
    turns: Sequence[tuple[int, int]],
    *,
    seed: int = 0,
    new_segment_at: Sequence[int] = (),
    rewards: Sequence[float] | None = None,
    truncated: bool = False,
    final_observation: int = 0,
    vocab_size: int = VOCAB_SIZE,
) -> Trajectory:
    """Make an episode of random tokens.

    turns: (observation tokens, action tokens) of each turn. The first observation of a segment needs at
    least one. new_segment_at: turns that start a new segment.
    rewards: one a turn; by default 1 on the last.
    final_observation: observation tokens after the last action.

    The action tokens and their logprobs depend on `seed` and the action lengths only, not on the
    observations.
    """
    action_rng, context_rng = random.Random(seed), random.Random(seed + 1_000_003)
    trajectory = Trajectory(terminated=not truncated, truncated=truncated, episode=seed)
    if truncated:
        trajectory.truncation_cause = "turn_limit"
    for index, (num_context, num_action) in enumerate(turns):
        if index == 0 or index in new_segment_at:
            trajectory.segments.append(Segment())
        segment = trajectory.segments[-1]
        segment.append_context([context_rng.randrange(3, vocab_size) for _ in range(num_context)])
        ids = [action_rng.randrange(3, vocab_size) for _ in range(num_action)]
        start, end = segment.append_action(ids, [-4.0 * action_rng.random() for _ in ids])
        reward = rewards[index] if rewards is not None else float(index == len(turns) - 1)
        trajectory.turns.append(Turn("seen", "done", len(trajectory.segments) - 1, start, end, reward))
    trajectory.segments[-1].append_context(
        [context_rng.randrange(3, vocab_size) for _ in range(final_observation)]
    )
    return trajectory

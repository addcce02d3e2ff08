"""Plays chosen episodes with a model, outside a trainer: dev scores while cloning, final evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from trl_agent.action_format import ActionFormat
from trl_agent.chat import ChatFormat
from trl_agent.context import ContextPolicy
from trl_agent.demonstrations import Reset
from trl_agent.generation.protocol import SamplingParams
from trl_agent.generation.transformers_backend import TransformersBackend
from trl_agent.rollout import EpisodeRequest, collect
from trl_agent.trajectory import Trajectory
from trl_agent_envs.pool import EnvPool


@dataclass
class Stage:
    """Where and how to play: the environment, and the limits that training uses too.

    precision: autocast type of the forward passes; None = the model's own.
    """

    env_id: str
    env_kwargs: dict[str, Any]
    chat: ChatFormat
    num_envs: int = 16
    max_new_tokens: int = 64
    max_length: int = 2048
    max_turns: int | None = None
    context_policy: ContextPolicy = "full"
    context_window: int | None = None
    max_episode_tokens: int | None = None
    action_format: ActionFormat = "plain"
    use_system_prompt: bool = True
    seed: int = 0
    precision: torch.dtype | None = None
    pool_kwargs: dict[str, Any] = field(default_factory=dict)

    def play(
        self,
        model: PreTrainedModel,
        resets: Sequence[Reset],
        *,
        temperature: float,
        top_p: float = 1.0,
        progress: str | None = None,
    ) -> list[Trajectory]:
        """Play one episode per reset; `temperature=0` is greedy. The same arguments give the same episodes."""
        requests = [
            EpisodeRequest(episode=index, update=0, seed=seed, options=options)
            for index, (seed, options) in enumerate(resets)
        ]
        backend = TransformersBackend(
            model,
            pad_token_id=self.chat.pad_token_id,
            stop_token_ids=self.chat.stop_token_ids,
            autocast_dtype=self.precision,
        )
        bar = tqdm(total=len(requests), desc=progress, disable=None if progress else True)
        pool = EnvPool(
            self.env_id,
            self.env_kwargs,
            min(self.num_envs, max(1, len(requests))),
            schedule="lockstep",
            **self.pool_kwargs,
        )
        with pool, bar:
            return collect(
                pool,
                backend,
                self.chat,
                requests,
                SamplingParams(temperature=temperature, top_p=top_p, max_new_tokens=self.max_new_tokens),
                base_seed=self.seed,
                max_turns=self.max_turns,
                max_length=self.max_length,
                context_policy=self.context_policy,
                context_window=self.context_window,
                max_episode_tokens=self.max_episode_tokens,
                action_format=self.action_format,
                use_system_prompt=self.use_system_prompt,
                progress=lambda done, total: bar.update(done - bar.n),
            )

"""Plays chosen episodes with a model, outside a trainer: dev scores while cloning, final evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from trl_agent.action_format import ActionFormat, check_action_format
from trl_agent.chat import ChatFormat
from trl_agent.context import ContextPolicy, check_context
from trl_agent.demonstrations import Reset
from trl_agent.generation.protocol import SamplingParams
from trl_agent.generation.transformers_backend import TransformersBackend
from trl_agent.rollout import EpisodeRequest, ScriptedPolicy, collect, run_scripted
from trl_agent.trajectory import Trajectory
from trl_agent_envs.pool import EnvPool


@dataclass
class PlayOptions:
    """How episodes are played, in training and in evaluation alike; `AgentPPOConfig` has the same fields."""

    output_dir: str
    seed: int = 0
    num_envs: int = 16
    max_turns: int | None = None
    max_new_tokens: int = 64
    max_length: int = 2048
    temperature: float = 1.0
    top_p: float = 1.0
    context_policy: ContextPolicy = "full"
    context_window: int | None = None
    max_episode_tokens: int | None = None
    action_format: ActionFormat = "plain"
    use_system_prompt: bool = True
    step_timeout: float = 60.0
    episode_timeout: float | None = 600.0
    precision: Literal["no", "bf16", "fp16"] = "no"

    def __post_init__(self) -> None:
        check_context(self.context_policy, self.context_window, self.max_length, self.max_episode_tokens)
        check_action_format(self.action_format)

    @classmethod
    def of(cls, config: Any) -> PlayOptions:
        """Take the fields from a configuration that has them."""
        return cls(**{item.name: getattr(config, item.name) for item in fields(cls)})

    @property
    def reading(self) -> dict[str, Any]:
        """What the policy sees of an episode, played or recorded: arguments of the functions that tokenize one."""
        return {
            "use_system_prompt": self.use_system_prompt,
            "max_length": self.max_length,
            "context_policy": self.context_policy,
            "context_window": self.context_window,
            "action_format": self.action_format,
        }

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        return {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}[self.precision]


@dataclass
class Stage:
    """Where and how to play: an environment, and the limits that training uses too."""

    env_id: str
    env_kwargs: dict[str, Any]
    chat: ChatFormat
    options: PlayOptions

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
        playing = self.options
        requests = _requests(resets)
        backend = TransformersBackend(
            model,
            pad_token_id=self.chat.pad_token_id,
            stop_token_ids=self.chat.stop_token_ids,
            autocast_dtype=playing.autocast_dtype,
        )
        with self._pool(requests) as pool, _bar(requests, progress) as bar:
            return collect(
                pool,
                backend,
                self.chat,
                requests,
                SamplingParams(temperature=temperature, top_p=top_p, max_new_tokens=playing.max_new_tokens),
                base_seed=playing.seed,
                max_turns=playing.max_turns,
                max_episode_tokens=playing.max_episode_tokens,
                **playing.reading,
                progress=lambda done, total: bar.update(done - bar.n),
            )

    def play_scripted(
        self, policy: ScriptedPolicy, resets: Sequence[Reset], *, progress: str | None = None
    ) -> list[Trajectory]:
        """Play one episode per reset without a model, by `rollout.run_scripted`, with the same limits and deadlines."""
        requests = _requests(resets)
        with self._pool(requests) as pool, _bar(requests, progress) as bar:
            return run_scripted(
                pool,
                policy,
                requests,
                base_seed=self.options.seed,
                max_turns=self.options.max_turns,
                progress=lambda done, total: bar.update(done - bar.n),
            )

    def _pool(self, requests: Sequence[EpisodeRequest]) -> EnvPool:
        return EnvPool(
            self.env_id,
            self.env_kwargs,
            min(self.options.num_envs, max(1, len(requests))),
            schedule="lockstep",
            step_timeout=self.options.step_timeout,
            episode_timeout=self.options.episode_timeout,
        )


def _requests(resets: Sequence[Reset]) -> list[EpisodeRequest]:
    return [
        EpisodeRequest(episode=index, update=0, seed=seed, options=options)
        for index, (seed, options) in enumerate(resets)
    ]


def _bar(requests: Sequence[EpisodeRequest], label: str | None) -> tqdm[Any]:
    return tqdm(total=len(requests), desc=label, disable=None if label else True)

"""What the recipes share: the environment's splits, the model, demonstrations, and evaluation on held-out goals."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PreTrainedModel
from trl import ModelConfig, TrlParser

from trl_agent.chat import ChatFormat
from trl_agent.demonstrations import (
    Reset,
    play_scripted,
    read_demonstrations,
    seeded_resets,
    write_demonstrations,
)
from trl_agent.evaluation import Summary, summarize
from trl_agent.model_loading import load_policy
from trl_agent.play import PlayOptions, Stage
from trl_agent.small_model import CHAT_TEMPLATE
from trl_agent.step_records import steps_to_trajectory, trajectory_to_steps
from trl_agent.trajectory import Trajectory
from trl_agent_envs.core import AgentEnv
from trl_agent_envs.records import EpisodeRecord
from trl_agent_envs.webshop.demonstrator import Demonstrator
from trl_agent_envs.webshop.env import WebShopEnv
from trl_agent_envs.webshop.sampling import spread_goals
from trl_agent_envs.webshop.splits import split_ids

logger = logging.getLogger(__name__)

WEBSHOP = "trl_agent/WebShop-v0"
_DEV_SEED, _TEST_SEED, _DEMONSTRATION_SEED = 1_000_001, 1_000_002, 1_000_003
"""Apart from each other and from any seed that training uses."""


@dataclass
class ExperimentArguments:
    """The environment, the demonstrations and the evaluation of a recipe."""

    env_id: str = field(
        default=f"trl_agent_envs:{WEBSHOP}", metadata={"help": "Gymnasium id, 'package:Name-v0'."}
    )
    env_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "JSON: further arguments of the environment."}
    )
    data_dir: str | None = field(
        default=None,
        metadata={"help": "WebShop: folder with the original's data files. None = embedded catalogue."},
    )
    goals: str = field(
        default="synthetic", metadata={"help": "WebShop: 'synthetic' or 'human' instructions."}
    )
    observation_mode: str = field(default="text", metadata={"help": "WebShop: 'text' or 'text_rich'."})
    demonstrations: str | None = field(
        default=None,
        metadata={"help": "File of step records to clone. None = a scripted crowd or oracle plays."},
    )
    num_demonstrations: int | None = field(
        default=None,
        metadata={"help": "Episodes the crowd plays. None = a quarter of PPO's episodes, at most 400."},
    )
    bc_epochs: int | None = field(
        default=None,
        metadata={"help": "Passes over the demonstrations before PPO; 0 = none. None = 3 for the small packaged model "
                  "or with --demonstrations, else 0."},
    )  # fmt: skip
    bc_learning_rate: float = field(default=1e-3, metadata={"help": "Learning rate of cloning."})
    error_penalty: float = field(
        default=0.0, metadata={"help": "Taken off PPO's reward for each action that cannot be carried out."}
    )
    dev_episodes: int | None = field(
        default=None, metadata={"help": "Dev episodes after each epoch of cloning. None = up to 100."}
    )
    test_episodes: int | None = field(
        default=None,
        metadata={
            "help": "Held-out episodes of each final evaluation. None = as many as PPO plays, at most 250."
        },
    )

    def __post_init__(self) -> None:
        for name, least in (
            ("num_demonstrations", 1),
            ("bc_epochs", 0),
            ("dev_episodes", 1),
            ("test_episodes", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value} is out of range: it must be None or at least {least}")
        if self.error_penalty < 0:
            raise ValueError(f"error_penalty={self.error_penalty} is out of range: it must be at least 0")
        if self.bc_learning_rate <= 0:
            raise ValueError(f"bc_learning_rate={self.bc_learning_rate} is out of range: it must be above 0")
        if isinstance(self.env_kwargs, str):
            self.env_kwargs = json.loads(self.env_kwargs)


def cpu_has_bf16() -> bool:
    """Whether the CPU computes in bfloat16, which then takes 0.6 of fp32's time; without it, it is slower."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def parse_recipe(recipe: Path, groups: Sequence[Any]) -> tuple[Any, ...]:
    """Read a recipe's options: the YAML file beside it (or ``--config FILE``) first, flags over it.

    Without ``--config``, a CPU that has bfloat16 uses it, and another one does not; ``--bf16 false`` turns it off.

    Args:
        recipe: the recipe's own file.
        groups: dataclasses of options; exactly one of them has `output_dir`, which is set to
            ``runs/<recipe>-<time>``, the same on every process, where no flag gives it.

    Returns:
        One object per group. An unknown name in the file or on the command line ends the program with an error.
    """
    arguments = sys.argv[1:]
    if "--config" not in arguments:
        # Transformers takes bf16 on a CPU only where it is told that the CPU is meant
        on_cpu = ["--use_cpu", "true", "--bf16", str(cpu_has_bf16()).lower()]
        precision = [] if torch.accelerator.is_available() else on_cpu
        defaults = ["--config", str(recipe.with_suffix(".yaml")), *precision]
        arguments = [*defaults, *arguments]  # the user has the last word
    parsed = TrlParser(tuple(groups)).parse_args_and_config(arguments)
    if not any(a.partition("=")[0] in ("--output_dir", "--output-dir") for a in arguments):
        folder = [f"runs/{recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"]
        if PartialState().num_processes > 1:
            broadcast_object_list(folder)
        next(group for group in parsed if hasattr(group, "output_dir")).output_dir = folder[0]
    return parsed


def use_all_cores(num_processes: int) -> None:
    """Share the machine's cores among the processes: `accelerate launch` would leave each with one thread."""
    if not torch.accelerator.is_available():
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // num_processes))


class Experiment:
    """One environment, one model, and the goals to train, tune and test on.

    The test goals are those of products that neither demonstrations nor PPO ever saw (for an environment without
    splits: seeds they never saw).
    """

    def __init__(
        self, arguments: ExperimentArguments, options: PlayOptions, model: ModelConfig, planned_episodes: int
    ) -> None:
        self.arguments, self.options, self.model_args = arguments, options, model
        self.state = PartialState()
        use_all_cores(self.state.num_processes)
        self.output_dir = Path(options.output_dir)
        self.seconds: dict[str, float] = {}
        self._demonstrations: list[EpisodeRecord] | None = None
        self.is_webshop = arguments.env_id.endswith(WEBSHOP)
        packaged = model.model_name_or_path is None
        self.bc_epochs = arguments.bc_epochs
        if self.bc_epochs is None:
            self.bc_epochs = 3 if packaged or arguments.demonstrations else 0
        self.num_demonstrations = arguments.num_demonstrations or min(400, max(8, planned_episodes // 4))
        self.dev_episodes = arguments.dev_episodes or min(100, max(8, planned_episodes // 16))
        self.test_episodes = arguments.test_episodes or min(250, max(8, planned_episodes))
        self.make_env("train").close()  # a wrong id or data file is found before anything is trained
        _, self.tokenizer = self.load_model()
        self.chat = ChatFormat(self.tokenizer)
        if self.tokenizer.chat_template == CHAT_TEMPLATE:  # the small model has no system turn
            options.use_system_prompt = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall-clock time inside to `seconds[name]`."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    # ---- environment --------------------------------------------------------------------------------------
    def env_kwargs(self, split: str) -> dict[str, Any]:
        """Arguments of the environment for a split; only WebShop has splits."""
        extra: dict[str, Any] = dict(self.arguments.env_kwargs or {})  # type: ignore[arg-type]  # parsed from JSON
        if not self.is_webshop:
            return extra
        arguments = self.arguments
        own = {
            "data_dir": arguments.data_dir,
            "goals": arguments.goals,
            "observation_mode": arguments.observation_mode,
        }
        limit = {} if self.options.max_turns is None else {"max_turns": self.options.max_turns}
        return {**own, **limit, "split": split, **extra}

    def make_env(self, split: str) -> gym.Env[str, str]:
        return gym.make(self.arguments.env_id, disable_env_checker=True, **self.env_kwargs(split))

    def resets(self, split: str, number: int) -> list[Reset]:
        """Episodes to play for a dev or test score: goals spread over products, or seeds kept for this split."""
        if not self.is_webshop:
            return seeded_resets(number, {"dev": _DEV_SEED, "test": _TEST_SEED}[split])
        env = self.make_env(split).unwrapped
        assert isinstance(env, WebShopEnv)
        ids = split_ids(self.arguments.goals, split, env.shop)
        return [(goal_id, {"goal_id": goal_id}) for goal_id in spread_goals(env.goals, ids, number)]

    # ---- model --------------------------------------------------------------------------------------------
    def load_model(self) -> tuple[PreTrainedModel, Any]:
        args = self.model_args
        dtype = torch.float32 if args.dtype in (None, "auto") else getattr(torch, args.dtype)
        return load_policy(
            args.model_name_or_path,
            dtype=dtype,
            revision=args.model_revision,
            attn_implementation=args.attn_implementation,
        )

    # ---- demonstrations -----------------------------------------------------------------------------------
    def demonstrations(self) -> list[EpisodeRecord]:
        """Read the demonstrations, or let a scripted crowd (WebShop) or the environment's oracle play them; once."""
        if self._demonstrations is None:
            self._demonstrations = self._get_demonstrations()
        return self._demonstrations

    def _get_demonstrations(self) -> list[EpisodeRecord]:
        path = self.arguments.demonstrations
        if path is not None:
            return read_demonstrations(path)
        resets = seeded_resets(self.num_demonstrations, _DEMONSTRATION_SEED + self.options.seed)
        label = self._label("demonstrations")
        if self.is_webshop:
            shopper = Demonstrator(seed=self.options.seed)
            episodes = play_scripted(self.make_env("train"), shopper, resets, progress=label)
        else:
            played = self.stage("train").play_scripted("oracle", resets, progress=label)
            episodes = [trajectory_to_steps(trajectory) for trajectory in played if trajectory.turns]
        if self.state.is_main_process:
            write_demonstrations(self.output_dir / "trajectories" / "demonstrations.jsonl", episodes)
        return episodes

    def offline_trajectories(self) -> list[Trajectory]:
        """The successful demonstrations, tokenized as the policy would have seen them; all, if none succeeded."""
        episodes = self.demonstrations()
        return [
            steps_to_trajectory(episode, self.chat, **self.options.reading)
            for episode in [e for e in episodes if e.success] or episodes
        ]

    # ---- evaluation ---------------------------------------------------------------------------------------
    def stage(self, split: str) -> Stage:
        return Stage(self.arguments.env_id, self.env_kwargs(split), self.chat, self.options)

    def dev_success(self, model: PreTrainedModel) -> float:
        """Greedy success rate on dev goals (mean score where nothing succeeds yet counts a little)."""
        summary = summarize(
            self.stage("dev").play(model, self.resets("dev", self.dev_episodes), temperature=0.0)
        )
        return summary.success + 1e-3 * summary.score

    def test(self, model: PreTrainedModel, name: str, greedy: bool) -> Summary:
        """Play the test goals; rank 0 keeps some of the episodes as step records."""
        label = f"{name} {'greedy' if greedy else 'sampled'}"
        trajectories = self.stage("test").play(
            model,
            self.resets("test", self.test_episodes),
            temperature=0.0 if greedy else self.options.temperature,
            top_p=1.0 if greedy else self.options.top_p,
            progress=self._label(f"test: {label}"),
        )
        self.keep_samples(trajectories, f"{name}-{'greedy' if greedy else 'sampled'}")
        return summarize(trajectories)

    def evaluate(self, model: PreTrainedModel, name: str) -> dict[str, Summary]:
        return {how: self.test(model, name, how == "greedy") for how in ("greedy", "sampled")}

    def random_baseline(self) -> dict[str, Summary] | None:
        """Random valid actions on the test goals; None where the environment cannot tell what is valid."""
        env = self.make_env("test")
        env.close()
        if type(env.unwrapped).sample_action is AgentEnv.sample_action:  # type: ignore[attr-defined]
            return None
        resets = self.resets("test", self.test_episodes)
        summary = summarize(
            self.stage("test").play_scripted("random", resets, progress=self._label("test: random"))
        )
        return {"greedy": summary, "sampled": summary}  # chance has no mode

    def keep_samples(self, trajectories: Sequence[Trajectory], name: str, number: int = 50) -> None:
        if self.state.is_main_process:
            path = self.output_dir / "trajectories" / f"{name}.jsonl"
            write_demonstrations(path, [trajectory_to_steps(t) for t in trajectories[:number] if t.turns])

    def _label(self, text: str) -> str | None:
        return text if self.state.is_main_process else None

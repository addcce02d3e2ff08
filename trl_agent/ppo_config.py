"""What a user chooses for agent PPO."""

from __future__ import annotations

import math
import os
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

import torch
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.utils import is_torch_bf16_gpu_available, is_torch_tf32_available

from trl_agent._compat import PPOConfig
from trl_agent.action_format import check_action_format
from trl_agent.context import check_context

_HONOURED = """
    output_dir run_name project seed use_cpu ddp_backend ddp_timeout resume_from_checkpoint disable_tqdm
    bf16 fp16 tf32 gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing
    activation_checkpointing_kwargs per_device_train_batch_size
    learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args
    weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm
    logging_strategy logging_steps logging_first_step report_to trackio_space_id trackio_bucket_id
    trackio_static_space_id eval_strategy eval_steps eval_delay eval_on_start
    save_strategy save_steps save_total_limit
    num_mini_batches num_ppo_epochs temperature kl_coef kl_estimator cliprange cliprange_value vf_coef
    gamma lam
    """
"""Inherited fields that change something here. Every other inherited field must keep its default."""

_INSTEAD = {
    "max_steps": "use max_updates",
    "total_episodes": "use max_updates and episodes_per_update",
    "num_train_epochs": "use max_updates",
    "response_length": "use max_new_tokens (per turn), max_length (per segment), max_episode_tokens",
    "gradient_accumulation_steps": "micro_batch_tokens makes the micro batches",
    "per_device_eval_batch_size": "num_envs bounds what runs at once",
    "whiten_rewards": "use whiten_advantages",
    "missing_eos_penalty": "give a penalty through reward_funcs",
    "stop_token": "the chat template decides where a turn ends",
    "stop_token_id": "the chat template decides where a turn ends",
    "local_rollout_forward_batch_size": "use micro_batch_tokens",
    "num_sample_generations": "trajectories are written as step records",
    "deepspeed": "only data parallelism (DDP) is supported",
    "fsdp": "only data parallelism (DDP) is supported",
    "push_to_hub": "upload the folder final/ with `hf upload`",
    "full_determinism": 'use schedule="lockstep"',
    "ref_adapter_name": "the reference of a PEFT model is chosen automatically",
}

_NORMALISED: dict[str, tuple[Any, ...]] = {
    "accelerator_config": (AcceleratorConfig(),),
    "debug": ([], None),
    "include_num_input_tokens_seen": ("no", False),
    "dataloader_pin_memory": (False,),
    "do_eval": (True,),
}
"""What TrainingArguments turns a default into; allowed too, so that `dataclasses.replace` works."""


@dataclass
class AgentPPOConfig(PPOConfig):
    r"""Configuration of [`AgentPPOTrainer`].

    Terms: an *update* is one round of rollout and optimization, and what `logging_steps`, `eval_steps`,
    `save_steps` and `warmup_steps` count. An episode has turns, a turn has tokens. Numbers of episodes are
    global: they do not change with the number of processes.

    Only the fields below and those of `transformers.TrainingArguments` that mean something here may be set
    (`learning_rate`, `optim`, `bf16`, `report_to`, `save_steps` ...). Setting any other one raises
    ValueError: no option is silently ignored.

    On a machine without an accelerator `use_cpu` is set. Precision: what `bf16`, `fp16` or `accelerate launch
    --mixed_precision` ask for; if none does, bf16 on a GPU that has it and fp32 elsewhere. `tf32` is on by
    default where it exists.

    Raises:
        ValueError: naming the field, its value and what is allowed.
    """

    # Inherited fields with other defaults
    learning_rate: float = field(default=1e-5, metadata={"help": "Learning rate after warm-up."})
    optim: str = field(
        default="adamw_torch",
        metadata={"help": "A name of transformers, or 'muon' (Muon on hidden matrices, AdamW elsewhere)."},
    )
    lr_scheduler_type: str = field(default="constant", metadata={"help": "Schedule over updates."})
    logging_steps: float = field(default=1, metadata={"help": "Updates between two logs."})
    save_steps: float = field(default=20, metadata={"help": "Updates between two checkpoints."})
    gradient_checkpointing: bool | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Recompute activations in backward: less memory, about 20%% slower."}
    )
    per_device_train_batch_size: int = field(
        default=64, metadata={"help": "Most episodes in one micro batch (micro_batch_tokens bounds it too)."}
    )
    temperature: float = field(default=1.0, metadata={"help": "Temperature of the rollout, above 0."})
    vf_coef: float = field(default=0.5, metadata={"help": "Weight of the value loss."})
    gamma: float = field(default=0.99, metadata={"help": "Discount, in [0, 1]; see discount_per."})
    kl_coef: float = field(
        default=0.05,
        metadata={"help": "Weight of the KL penalty to the reference (the first one, if 'auto'); 0 = none."},
    )
    kl_estimator: Literal["k1", "k2", "k3"] = field(  # type: ignore[assignment]
        default="k1",
        metadata={"help": "Estimator of the KL per token (http://joschu.net/blog/kl-approx.html)."},
    )

    # Length of the run
    max_updates: int = field(default=100, metadata={"help": "Updates to do."})
    episodes_per_update: int = field(
        default=64, metadata={"help": "Episodes per update, over all processes."}
    )
    episodes_per_goal: int = field(
        default=1,
        metadata={
            "help": "Episodes of an update that share a seed, and so a goal. Above 1, the mean result of the others "
            "is taken off each one's last reward, so that a hard goal is no reproach."
        },
    )
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Remove an earlier run's checkpoints and metrics from output_dir."}
    )

    # Environments and rollout
    num_envs: int = field(default=16, metadata={"help": "Episodes that run at once in each process."})
    schedule: Literal["free", "lockstep"] = field(
        default="free",
        metadata={"help": "'free' never waits for the slowest environment; 'lockstep' repeats to the bit."},
    )
    step_timeout: float = field(default=60.0, metadata={"help": "Seconds an environment's step may take."})
    episode_timeout: float | None = field(default=600.0, metadata={"help": "Seconds an episode may take."})
    max_env_retries: int = field(default=3, metadata={"help": "Failures in a row before giving up."})
    use_system_prompt: bool = field(
        default=True, metadata={"help": "Put the environment's rules before the first observation."}
    )
    max_turns: int | None = field(default=None, metadata={"help": "Turns per episode; None = the env's."})
    max_new_tokens: int = field(default=64, metadata={"help": "Most tokens an action may have."})
    max_length: int = field(
        default=2048, metadata={"help": "Most tokens a segment (observations too) may have."}
    )
    max_episode_tokens: int | None = field(
        default=None,
        metadata={"help": "Most tokens of an episode's segments together (rewritten contexts count again)."},
    )
    context_policy: Literal["full", "window"] = field(
        default="full",
        metadata={
            "help": "'window' leaves out old observations but for the last context_window ones (up to twice as "
            "many less one: they go in chunks, each beginning a new segment); 'full' keeps everything."
        },
    )
    context_window: int | None = field(
        default=None, metadata={"help": "Observations kept whole by context_policy='window'."}
    )
    action_format: Literal["plain", "tagged"] = field(
        default="plain",
        metadata={
            "help": "'tagged' = free reasoning, then <action>...</action>; 'plain' = the action alone."
        },
    )
    top_p: float = field(default=1.0, metadata={"help": "Nucleus sampling in the rollout, in (0, 1]."})
    top_k: int = field(
        default=0, metadata={"help": "Sample among the k likeliest tokens in the rollout; 0 = all."}
    )

    # Objective
    cliprange_low: float | None = field(
        default=None, metadata={"help": "Lower clip range; None = cliprange."}
    )
    cliprange_high: float | None = field(
        default=None, metadata={"help": "Upper clip range; None = cliprange."}
    )
    cliprange_end: float | None = field(
        default=None, metadata={"help": "Clip range at the last update, reached linearly; None = constant."}
    )
    ent_coef: float = field(default=0.01, metadata={"help": "Weight of the entropy bonus."})
    discount_per: Literal["turn", "token"] = field(
        default="turn", metadata={"help": "Whether gamma and lam apply between turns or between tokens."}
    )
    whiten_advantages: bool = field(
        default=True, metadata={"help": "Normalise advantages to mean 0 and variance 1 over the update."}
    )
    loss_normalization: Literal["token", "episode"] = field(
        default="token",
        metadata={"help": "Whether each action token or each episode counts the same in a minibatch's loss."},
    )
    kl_control: Literal["fixed", "auto"] = field(
        default="fixed",
        metadata={"help": "'auto' adapts kl_coef until the KL to the reference is target_kl."},
    )
    kl_horizon: int = field(
        default=10_000, metadata={"help": "Episodes over which kl_control='auto' reacts."}
    )
    target_kl: float | None = field(
        default=6.0,
        metadata={
            "help": "Nats per episode. An update's epochs stop when the policy moved this far; also the "
            "target of kl_control='auto'. None = never stop."
        },
    )
    bc_coef: float = field(default=0.0, metadata={"help": "Weight of the BC loss on offline_trajectories."})
    bc_label_smoothing: float = field(
        default=0.1,
        metadata={
            "help": "BC term: share of the uniform distribution in its targets at the start, in [0, 1]."
        },
    )
    bc_label_smoothing_end: float = field(
        default=0.0, metadata={"help": "The same at the end, in [0, 1]; see bc_label_smoothing_by."}
    )
    bc_label_smoothing_by: Literal["progress", "success"] = field(
        default="progress",
        metadata={"help": "Whether the end is reached with the last update, or when every episode succeeds."},
    )
    bc_weighting: Literal["uniform", "p(1-p)"] = field(
        default="uniform",
        metadata={"help": "BC term: how a token counts; 'p(1-p)' = most where the policy hesitates (CHORD)."},
    )
    offline_share: float = field(
        default=0.25,
        metadata={"help": "Share of an update's episodes taken from offline_trajectories, in (0, 1)."},
    )
    offline_share_end: float | None = field(
        default=None,
        metadata={"help": "The same at the last update, reached linearly, in [0, 1); None = constant."},
    )

    # Model
    critic: Literal["shared", "separate"] = field(
        default="shared", metadata={"help": "Value head on the policy's trunk, or on a model of its own."}
    )
    critic_lr_multiplier: float = field(
        default=1.0, metadata={"help": "Learning rate of the value head and critic over the policy's."}
    )
    muon_learning_rate: float = field(default=0.02, metadata={"help": "Muon's, if optim='muon'."})
    micro_batch_tokens: int = field(
        default=16_384, metadata={"help": "Most tokens (padding too) in one forward and backward pass."}
    )

    # Evaluation and cost
    eval_episodes: int | None = field(
        default=None,
        metadata={
            "help": "Episodes of an evaluation. None = 100, or a sixteenth of those trained on if that is less "
            "(8 at least)."
        },
    )
    price_per_hour: float | None = field(default=None, metadata={"help": "Price of a device hour."})

    def __post_init__(self) -> None:
        self._refuse_unused_fields()
        self._check_ranges()
        self._choose_device_and_precision()
        if self.eval_episodes is None:
            self.eval_episodes = min(100, max(8, self.max_updates * self.episodes_per_update // 16))
        if self.eval_steps is not None and self.eval_strategy == "no":
            self.eval_strategy = "steps"
        optim = self.optim
        if optim == "muon":  # not one of transformers' names, which the parent checks
            self.optim = "adamw_torch"
        super().__post_init__()
        self.optim = optim

    def _refuse_unused_fields(self) -> None:
        own, honoured = AgentPPOConfig.__annotations__, set(_HONOURED.split())
        for item in fields(AgentPPOConfig):
            if item.name in own or item.name in honoured or not item.init:
                continue
            value = getattr(self, item.name)
            default = item.default_factory() if item.default_factory is not MISSING else item.default
            if value == default or value in _NORMALISED.get(item.name, ()):
                continue
            advice = _INSTEAD.get(item.name, "leave it at its default")
            raise ValueError(f"{item.name}={value!r} is not used by AgentPPOTrainer: {advice}")

    def _check_ranges(self) -> None:
        for name in (
            "max_updates",
            "episodes_per_update",
            "episodes_per_goal",
            "num_envs",
            "max_new_tokens",
            "max_length",
            "num_ppo_epochs",
            "num_mini_batches",
            "micro_batch_tokens",
            "per_device_train_batch_size",
            "max_env_retries",
            "kl_horizon",
        ):
            _check(self, name, lambda v: isinstance(v, int) and v >= 1, "an integer of at least 1")
        for name in ("max_turns", "eval_episodes"):
            _check(self, name, lambda v: v is None or (isinstance(v, int) and v >= 1), "None or at least 1")
        _check(self, "top_k", lambda v: isinstance(v, int) and v >= 0, "an integer of at least 0")
        for name in ("step_timeout", "temperature", "muon_learning_rate", "critic_lr_multiplier"):
            _check(self, name, _positive, "a number above 0")
        for name in ("episode_timeout", "target_kl", "cliprange_value"):
            _check(self, name, lambda v: v is None or _positive(v), "None or a number above 0")
        for name in (
            "learning_rate",
            "vf_coef",
            "ent_coef",
            "kl_coef",
            "bc_coef",
            "max_grad_norm",
            "weight_decay",
        ):
            _check(self, name, _not_negative, "a number of at least 0")
        _check(self, "price_per_hour", lambda v: v is None or _not_negative(v), "None or at least 0")
        for name in ("gamma", "lam", "bc_label_smoothing", "bc_label_smoothing_end"):
            _check(self, name, lambda v: 0 <= v <= 1, "in [0, 1]")
        _check(self, "offline_share_end", lambda v: v is None or 0 <= v < 1, "None or in [0, 1)")
        _check(self, "top_p", lambda v: 0 < v <= 1, "in (0, 1]")
        _check(self, "offline_share", lambda v: 0 < v < 1, "in (0, 1)")
        _check(self, "cliprange", lambda v: 0 < v < 1, "in (0, 1)")
        for name in ("cliprange_low", "cliprange_end"):
            _check(self, name, lambda v: v is None or 0 < v < 1, "None or in (0, 1)")
        _check(self, "cliprange_high", lambda v: v is None or _positive(v), "None or a number above 0")
        self._check_choices()

    def _check_choices(self) -> None:
        check_context(self.context_policy, self.context_window, self.max_length, self.max_episode_tokens)
        check_action_format(self.action_format)
        choices = {
            "schedule": ("free", "lockstep"),
            "discount_per": ("turn", "token"),
            "kl_estimator": ("k1", "k2", "k3"),
            "kl_control": ("fixed", "auto"),
            "critic": ("shared", "separate"),
            "loss_normalization": ("token", "episode"),
            "bc_label_smoothing_by": ("progress", "success"),
            "bc_weighting": ("uniform", "p(1-p)"),
        }
        for name, allowed in choices.items():
            _check(self, name, lambda v, allowed=allowed: v in allowed, f"one of {allowed}")
        for name in ("eval_strategy", "save_strategy", "logging_strategy"):
            _check(
                self, name, lambda v: v in ("no", "steps"), "'no' or 'steps' (there are no epochs of data)"
            )
        _check(
            self,
            "lr_scheduler_type",
            lambda v: v not in ("reduce_lr_on_plateau", "greedy"),
            "a schedule over updates, not one that reacts to a metric",
        )
        if self.episodes_per_update % self.episodes_per_goal:
            raise ValueError(
                f"episodes_per_update={self.episodes_per_update} is no multiple of "
                f"episodes_per_goal={self.episodes_per_goal}"
            )
        if self.kl_control == "auto" and (self.target_kl is None or self.kl_coef == 0):
            raise ValueError(
                "kl_control='auto' adapts kl_coef towards target_kl, so it needs kl_coef above 0 "
                f"(got {self.kl_coef}) and a target_kl (got {self.target_kl})"
            )
        if self.cliprange_end is not None and (self.cliprange_low, self.cliprange_high) != (None, None):
            raise ValueError(
                "cliprange_end schedules cliprange; with it, leave cliprange_low and cliprange_high None"
            )
        if self.fp16 and self.bf16:
            raise ValueError("bf16=True and fp16=True: at most one of them may be set")

    def _choose_device_and_precision(self) -> None:
        if not torch.accelerator.is_available():
            self.use_cpu = True
        asked = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")  # set by `accelerate launch`
        if self.bf16 is None and not self.fp16:
            self.fp16 = asked == "fp16"
            self.bf16 = asked == "bf16" or (
                asked == "no" and not self.use_cpu and is_torch_bf16_gpu_available()
            )
        if self.fp16 and self.use_cpu:
            raise ValueError(
                "fp16=True needs a GPU (its loss scaling does not exist on CPU); use bf16=True or neither"
            )
        if self.tf32 is None and not self.use_cpu and is_torch_tf32_available():
            self.tf32 = True

    @property
    def precision(self) -> Literal["no", "bf16", "fp16"]:
        """Autocast precision of rollout, forward and backward passes; "no" is fp32."""
        if self.fp16:
            return "fp16"
        return "bf16" if self.bf16 else "no"

    @property
    def clip(self) -> tuple[float, float]:
        """Lower and upper clip range at the first update."""
        low = self.cliprange if self.cliprange_low is None else self.cliprange_low
        high = self.cliprange if self.cliprange_high is None else self.cliprange_high
        return low, high


def _check(config: AgentPPOConfig, name: str, allowed: Any, meaning: str) -> None:
    value = getattr(config, name)
    try:
        good = bool(allowed(value))
    except TypeError:
        good = False
    if not good:
        raise ValueError(f"{name}={value!r} is out of range: it must be {meaning}")


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _not_negative(value: float) -> bool:
    return math.isfinite(value) and value >= 0

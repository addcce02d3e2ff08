"""How TRL's PPOTrainer constructor is brought to build this package's trainer."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import Trainer

from trl_agent._compat import forget_other_precision
from trl_agent.optim.muon import MuonWithAdamW, muon_with_adamw
from trl_agent.ppo_config import AgentPPOConfig

_PRECISION_VARIABLE = "ACCELERATE_MIXED_PRECISION"


class NoValueModel(nn.Module):
    """Stands where TRL wants a value model; `ActorCritic` has the critic."""

    base_model_prefix = "trunk"

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Identity()


def arguments_for_trl(args: AgentPPOConfig, model: Any) -> AgentPPOConfig:
    """Return a copy of `args` with the values that TRL's constructor derives its own batch sizes from."""
    copied = copy.copy(args)
    copied.num_mini_batches = 1
    copied.num_sample_generations = 0
    copied.total_episodes = args.max_updates * args.episodes_per_update
    copied.kl_estimator = "k1"  # TRL knows k1 and k3 only
    # TRL overwrites the generation config's end-of-sequence ids with this
    copied.stop_token_id = model.generation_config.eos_token_id
    return copied


@contextmanager
def precision_of(args: AgentPPOConfig) -> Iterator[None]:
    """Inside, an `Accelerator` made without saying so has the precision asked for (TRL makes such a one).

    TRL's own use of a name that Transformers deprecates is no news for the user.
    """
    before = os.environ.get(_PRECISION_VARIABLE)
    os.environ[_PRECISION_VARIABLE] = args.precision
    forget_other_precision(args.precision)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
            yield
    finally:
        if before is None:
            del os.environ[_PRECISION_VARIABLE]
        else:
            os.environ[_PRECISION_VARIABLE] = before


def check_weights(model: nn.Module, args: AgentPPOConfig) -> None:
    """Raise ValueError if the trainable weights contradict the precision asked for."""
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    if args.precision == "fp16" and torch.float16 in dtypes:
        raise ValueError(
            "fp16=True scales the loss and needs fp32 weights, but the model's are float16; load it with "
            "dtype='float32'"
        )
    low = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes & {torch.float16, torch.bfloat16})
    if args.precision == "no" and low:
        raise ValueError(
            f"neither bf16 nor fp16 is set, but the model's weights are {low[0]}; load it with "
            "dtype='float32', or set bf16=True"
        )


def make_optimizer(model: nn.Module, args: AgentPPOConfig) -> torch.optim.Optimizer:
    """Build the optimizer that `args.optim` names over the model's trainable parameters.

    The critic's parameters have `critic_lr_multiplier` times the learning rate; matrices decay.

    Raises:
        ValueError: an optimizer that wants to choose its own parameters (GaLore, LOMO, ...).
    """

    def multiplier(name: str) -> float:
        return args.critic_lr_multiplier if is_critic(name) else 1.0

    if args.optim == "muon":
        return muon_with_adamw(
            model, args.learning_rate, args.muon_learning_rate, args.weight_decay, lr_multiplier=multiplier
        )
    cls, kwargs = Trainer.get_optimizer_cls_and_kwargs(args, model)  # type: ignore[arg-type]
    if (
        not isinstance(cls, type)
        or not issubclass(cls, torch.optim.Optimizer)
        or kwargs.keys() & {"params", "model", "optimizer_dict"}
    ):
        raise ValueError(
            f"optim={str(args.optim)!r} chooses its own parameters and is not supported here; use another"
        )
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decay = args.weight_decay if parameter.ndim >= 2 else 0.0
            groups.setdefault((args.learning_rate * multiplier(name), decay), []).append(parameter)
    return cls(
        [{"params": p, "lr": lr, "weight_decay": decay} for (lr, decay), p in groups.items()], **kwargs
    )


def add_missing_parameters(optimizer: torch.optim.Optimizer, model: nn.Module, args: AgentPPOConfig) -> None:
    """Give a user's optimizer the trainable parameters that it does not have, such as the value head's."""
    if isinstance(optimizer, MuonWithAdamW):
        raise ValueError("pass optim='muon' instead of a MuonWithAdamW: it must be built with the value head")
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    if missing:
        optimizer.add_param_group(
            {"params": missing, "lr": args.learning_rate * args.critic_lr_multiplier, "weight_decay": 0.0}
        )


def is_critic(name: str) -> bool:
    """Whether a parameter of `ActorCritic` belongs to the critic alone."""
    return name.startswith(("value_head.", "value_model."))

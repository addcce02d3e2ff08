"""Every private or experimental import of TRL, transformers and accelerate, and the versions checked.

Checked on trl 1.12.0, transformers 5.24.0 and accelerate 1.15.0.
"""

from __future__ import annotations

import inspect
from typing import Any

from accelerate import Accelerator
from accelerate.state import AcceleratorState
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer
from trl.chat_template_utils import (
    get_training_chat_template,
    is_chat_template_prefix_preserving,
    supports_tool_calling,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer
from trl.experimental.ppo.ppo_trainer import OnlineTrainerState
from trl.experimental.utils import create_reference_model
from trl.trainer.utils import disable_dropout_in_model

__all__ = [
    "Cache",
    "CacheLayerMixin",
    "DynamicCache",
    "DynamicLayer",
    "OnlineTrainerState",
    "PPOConfig",
    "PPOTrainer",
    "cache_argument",
    "create_reference_model",
    "disable_dropout_in_model",
    "forget_other_precision",
    "get_training_chat_template",
    "is_chat_template_prefix_preserving",
    "set_gradient_sync",
    "supports_tool_calling",
]


def cache_argument(model: Any) -> str:
    """Name of the argument (and output field) of `model.forward` that holds the KV cache.

    transformers 5.24 renames `past_key_values` to `cache`, one model after the other.
    """
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def forget_other_precision(precision: str) -> None:
    """Let the next `Accelerator` have this mixed precision ("no", "bf16", "fp16").

    Accelerate keeps the first precision of a process for all later accelerators, without a word.
    """
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != precision:
        AcceleratorState._reset_state()


def set_gradient_sync(accelerator: Accelerator, sync: bool) -> None:
    """Say whether the next backward pass is the last before an optimizer step (as HF's Trainer does)."""
    accelerator.gradient_state._set_sync_gradients(sync)

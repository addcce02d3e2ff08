"""Reinforcement learning for language-model agents, on TRL.

Names are imported when first used, so ``import trl_agent`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trl_agent.ppo_config import AgentPPOConfig
    from trl_agent.ppo_trainer import AgentPPOTrainer
    from trl_agent.trajectory import Segment, Trajectory, Turn

__all__ = ["AgentPPOConfig", "AgentPPOTrainer", "Segment", "Trajectory", "Turn"]

__version__ = "0.1.0"

_MODULES = {
    "AgentPPOConfig": "ppo_config",
    "AgentPPOTrainer": "ppo_trainer",
    "Segment": "trajectory",
    "Trajectory": "trajectory",
    "Turn": "trajectory",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

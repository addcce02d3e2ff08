"""Turn a language model into an agent by reinforcement learning. Start at `AgentPPOTrainer`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trl_agent.ppo_config import AgentPPOConfig
    from trl_agent.ppo_trainer import AgentPPOTrainer
    from trl_agent.trajectory import Trajectory, Turn

__all__ = ["AgentPPOConfig", "AgentPPOTrainer", "Trajectory", "Turn"]

_HOMES = {
    "AgentPPOConfig": "trl_agent.ppo_config",
    "AgentPPOTrainer": "trl_agent.ppo_trainer",
    "Trajectory": "trl_agent.trajectory",
    "Turn": "trl_agent.trajectory",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: a trainer takes seconds to import, a trajectory does not."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The gym: text environments for agents, and what runs many of them at once. Start in ``envs/README.md``."""

import gymnasium as _gym

from trl_agent_envs import records
from trl_agent_envs.checker import check_agent_env
from trl_agent_envs.core import AgentEnv, Backend, StepInfo, TruncationCause, UnicodeText
from trl_agent_envs.pool import EnvEvent, EnvPool, EnvPoolError

__all__ = [
    "AgentEnv",
    "Backend",
    "EnvEvent",
    "EnvPool",
    "EnvPoolError",
    "StepInfo",
    "TruncationCause",
    "UnicodeText",
    "check_agent_env",
    "records",
]

# The entry point is text, so that importing this package loads no environment.
if "trl_agent/WebShop-v0" not in _gym.registry:
    _gym.register(id="trl_agent/WebShop-v0", entry_point="trl_agent_envs.webshop.env:WebShopEnv")

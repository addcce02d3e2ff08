"""`import trl_agent` is light, and its public names are there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import trl_agent


def test_every_public_name_is_there() -> None:
    assert {"AgentPPOConfig", "AgentPPOTrainer", "Trajectory", "Turn"} <= set(trl_agent.__all__)
    for name in trl_agent.__all__:
        assert getattr(trl_agent, name).__name__ == name
        assert name in dir(trl_agent)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'AgentDPOTrainer'"):
        trl_agent.AgentDPOTrainer  # noqa: B018 - the access is what is tested


def test_trajectories_can_be_had_without_torch() -> None:
    code = "import sys; from trl_agent import Trajectory, Turn; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

"""UnicodeText and what `AgentEnv` gives an environment that implements nothing else."""

from __future__ import annotations

import random
import subprocess
import sys

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trl_agent_envs
from trl_agent_envs import AgentEnv, UnicodeText


@given(st.text(max_size=50))
def test_every_string_is_in_the_space(text: str) -> None:
    assert UnicodeText().contains(text)
    assert UnicodeText(50).contains(text)
    assert UnicodeText(max(1, len(text))).contains(text)


def test_what_is_not_in_the_space() -> None:
    assert not UnicodeText(3).contains("four")
    assert not UnicodeText().contains(b"bytes")
    assert not UnicodeText().contains(None)
    with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
        UnicodeText(0)
    with pytest.raises(ValueError, match="neither mask nor probability"):
        UnicodeText().sample(mask=object())  # type: ignore[arg-type]


def test_samples_are_in_the_space_and_follow_the_seed() -> None:
    space, twin = UnicodeText(5, seed=3), UnicodeText(5, seed=3)
    samples = [space.sample() for _ in range(50)]
    assert all(space.contains(text) for text in samples)
    assert samples == [twin.sample() for _ in range(50)]
    assert len(set(samples)) > 10
    for text in samples:
        text.encode()  # no surrogates
    assert space == twin != UnicodeText(6)
    assert repr(space) == "UnicodeText(5)"


def test_an_environment_has_sensible_defaults() -> None:
    env = AgentEnv()
    assert env.reset(seed=1) == ("", {})
    assert (env.state_key(), env.oracle_action(), env.sample_action(random.Random(0))) == (None, None, None)
    assert env.metadata["backend"] == "process"
    with pytest.raises(NotImplementedError):
        env.step("x")


def test_the_package_exports_what_it_promises() -> None:
    for name in (
        "AgentEnv",
        "EnvEvent",
        "EnvPool",
        "EnvPoolError",
        "UnicodeText",
        "check_agent_env",
        "records",
    ):
        assert name in trl_agent_envs.__all__
        assert hasattr(trl_agent_envs, name)


def test_importing_the_package_registers_environments_but_loads_none() -> None:
    assert gym.spec("trl_agent/WebShop-v0").entry_point == "trl_agent_envs.webshop.env:WebShopEnv"
    code = (
        "import sys, trl_agent_envs; "
        "heavy = [m for m in sys.modules if m.startswith('trl_agent_envs.webshop') "
        "or m.split('.')[0] in ('torch', 'transformers', 'trl', 'trl_agent', 'Stemmer', 'rapidfuzz', 'asyncio')]; "
        "sys.exit(' '.join(heavy) or 0)"
    )
    path = [entry for entry in sys.path if entry]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {code}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

"""check_agent_env passes what keeps the contract and names the rule that anything else breaks."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any, ClassVar

import fake_envs
import gymnasium as gym
import numpy as np
import pytest
from fake_envs import AsyncCountEnv, CountEnv

from trl_agent_envs import check_agent_env

Result = tuple[str, float, bool, bool, dict[str, Any]]


class GoodEnv(CountEnv):
    """`CountEnv` without the commands that misbehave; in `spoil` the classes below break one rule each."""

    def step(self, action: str) -> Result:
        if not action.startswith(("add", "say ")):
            action = "?" + action
        return self.spoil(*super().step(action))

    def spoil(
        self, observation: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> Any:
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize("env_id", ["fake/Count-v0", "fake/AsyncCount-v0", "fake/Limited-v0"])
def test_good_environments_pass(env_id: str) -> None:
    check_agent_env(gym.make(env_id, disable_env_checker=True))
    check_agent_env(GoodEnv(), episodes=1, seed=7)


def test_an_async_environment_is_closed() -> None:
    env = AsyncCountEnv()
    check_agent_env(env)
    assert id(env) in AsyncCountEnv.closed


def spoiled(**changes: Any) -> type[GoodEnv]:
    """Return an environment whose steps return `changes`: values, or functions of the environment."""

    class Spoiled(GoodEnv):
        def spoil(self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
            result = {
                "observation": observation,
                "reward": reward,
                "terminated": terminated,
                "truncated": truncated,
            }
            for name, value in changes.items():
                if name in result:
                    result[name] = value
                else:
                    info[name] = value
            return (*result.values(), info)

    return Spoiled


@pytest.mark.parametrize(
    ("env", "rule"),
    [
        (spoiled(observation=b"bytes"), "observation .*, step 0.*: b'bytes' .bytes., expected a str"),
        (spoiled(observation="x" * 1_000_001), "observation .*1000001 characters"),
        (spoiled(reward="1"), "reward .*expected a finite float"),
        (spoiled(reward=float("nan")), "reward .*expected a finite float"),
        (spoiled(terminated=1), "terminated .*1 .int., expected a bool"),
        (spoiled(truncated=np.bool_(False)), "truncated .*expected a bool"),
        (spoiled(terminated=True, truncated=True), "one end"),
        (spoiled(score=1.5), r"info\['score'\] .*1.5"),
        (spoiled(score=float("nan")), r"info\['score'\] .*nan"),
        (spoiled(success=1), r"info\['success'\] .*expected a bool"),
        (spoiled(goal_id=99), "one goal an episode .*goal 99, expected goal 3"),
        (spoiled(action_error=0), r"sample_action is valid .*led to 0"),
        (spoiled(action_error="never"), "sample_action is valid .*led to 'never', expected no action_error"),
        (spoiled(system_prompt="again"), r"info\['system_prompt'\] .*given by step"),
        (
            spoiled(truncation_cause="turn_limit"),
            r"info\['truncation_cause'\] .*expected None while not truncated",
        ),
        (
            spoiled(truncated=True, terminated=False, truncation_cause="tired"),
            r"info\['truncation_cause'\] .*'tired'",
        ),
    ],
)
def test_a_broken_step_is_named(env: type[GoodEnv], rule: str) -> None:
    with pytest.raises(AssertionError, match=rf"check_agent_env\(Spoiled\): {rule}"):
        check_agent_env(env())


class NoScore(GoodEnv):
    def spoil(self, *result: Any) -> Any:
        result[4].pop("score")
        return result


class ThreeValues(GoodEnv):
    def spoil(self, *result: Any) -> Any:
        return result[:3]


class Raises(GoodEnv):
    def step(self, action: str) -> Result:
        if action == "no such action":
            raise KeyError(action)
        return super().step(action)


class Unseeded(GoodEnv):
    def _observation(self) -> str:
        return str(random.random())


class Unrepeatable(GoodEnv):
    count_all = 0

    def _observation(self) -> str:
        self.count_all += 1
        return str(self.count_all)


class IgnoresGoal(GoodEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed)
        self.target = 3 if options is None else 4
        return observation, info | {"goal_id": self.target}


class NoOptions(GoodEnv):
    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


class ResetAlone(GoodEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=options)[0]


class KeyMoves(GoodEnv):
    def state_key(self) -> str:
        self.count += 1
        return super().state_key()


class KeyIsNumber(GoodEnv):
    def state_key(self) -> Any:
        return self.count


class OracleMoves(GoodEnv):
    asked = 0

    def oracle_action(self) -> str:
        self.asked += 1
        return str(self.asked)


class SamplesAnywhere(GoodEnv):
    sampled = 0

    def sample_action(self, rng: random.Random) -> str:
        self.sampled += 1
        return f"say {self.sampled}"


class UsesGlobals(GoodEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        np.random.rand()
        return super().reset(seed=seed, options=options)


class Unpicklable(GoodEnv):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "backend": "process"}

    def spoil(self, *result: Any) -> Any:
        result[4]["lock"] = threading.Lock()
        return result


class BadBackend(GoodEnv):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "backend": "thread"}


class DiscreteActions(GoodEnv):
    action_space = gym.spaces.Discrete(3)  # type: ignore[assignment]


class HalfAsync(GoodEnv):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "backend": "async"}

    async def areset(self, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return self.reset(**kwargs)


@pytest.mark.parametrize(
    ("env", "rule"),
    [
        (NoScore, r"info\['score'\] .*missing"),
        (ThreeValues, "step returns five values"),
        (Raises, "step never raises .*the action 'no such action' after a reset.*KeyError"),
        (Unseeded, "same seed, same episode"),
        (Unrepeatable, r"same seed, same episode \(episode 0, seed 0, repeated\): step 0 shows"),
        (IgnoresGoal, r"options\['goal_id'\] chooses the goal .*goal 4, expected goal 3"),
        (NoOptions, "reset: no parameter 'options'"),
        (ResetAlone, "reset returns a pair"),
        (KeyMoves, "state_key changes nothing"),
        (KeyIsNumber, "state_key .*0 .int., expected a str or None"),
        (OracleMoves, "oracle_action changes nothing"),
        (SamplesAnywhere, "sample_action draws from its rng only"),
        (UsesGlobals, "randomness: the global generator was used"),
        (Unpicklable, r"info\['lock'\] .*does not pickle"),
        (BadBackend, r'metadata\["backend"\]: \'thread\''),
        (DiscreteActions, "action_space: Discrete"),
        (HalfAsync, "astep: missing"),
    ],
)
def test_a_broken_environment_is_named(env: type[GoodEnv], rule: str) -> None:
    with pytest.raises(AssertionError, match=rf"check_agent_env\({env.__name__}\): {rule}"):
        check_agent_env(env())


def test_a_gymnasium_environment_without_a_score_is_told() -> None:
    env = fake_envs.PlainEnv()
    with pytest.raises(AssertionError, match=r"check_agent_env\(PlainEnv\): observation_space"):
        check_agent_env(env)


def test_episodes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="episodes=0, expected at least 1"):
        check_agent_env(GoodEnv(), episodes=0)

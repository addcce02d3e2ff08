"""check_agent_env: the contract of `AgentEnv` as assertions, for the tests of an environment's author."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Coroutine
from multiprocessing.reduction import ForkingPickler
from typing import Any, get_args

import gymnasium as gym
import numpy as np

from trl_agent_envs.core import Backend, TruncationCause

_MAX_STEPS = 50  # steps played of one episode: environments may be endless
_WRONG_ACTIONS = ("", " ", "no such action", "search[", "click[]", "]]", "é\u2028\x00😀\ud800", "x" * 10_000)


def check_agent_env(env: gym.Env[Any, Any], *, episodes: int = 3, seed: int = 0) -> None:
    """Play `env` and check that it keeps the contract that `EnvPool` and the trainers rely on.

    Plays `episodes` episodes of at most 50 steps, with `sample_action` or `oracle_action` where the
    environment has them, repeats each, then tries actions that mean nothing. An "async" environment is driven
    by its coroutines and closed at the end; any other is left open, in the middle of an episode.

    Args:
        env: the environment, as its constructor or `gymnasium.make` returns it.
        episodes: at least 1; episode i is reset with the seed ``seed + i``.
        seed: of the first episode.

    Raises:
        AssertionError: names the environment, the rule and what was seen instead.
    """
    if episodes < 1:
        raise ValueError(f"check_agent_env: episodes={episodes}, expected at least 1")
    checker = _Checker(env)
    try:
        checker.check_declarations()
        random_states = random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index]
        for episode in range(episodes):
            checker.check_episode(episode, seed + episode)
        checker.check_wrong_actions(seed)
        checker.check_unseeded_reset()
        checker.where = ""
        now = random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index]
        checker.require(
            now == random_states, "randomness", "the global generator was used", "self.np_random only"
        )
    finally:
        checker.close()


class _Checker:
    """One run of the checks; `where` says in errors how far it came."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env = env
        self.unwrapped = env.unwrapped
        self.name = type(self.unwrapped).__name__
        self.where = ""
        metadata = getattr(self.unwrapped, "metadata", None) or {}
        self.backend = metadata.get("backend", "process")
        self.reset_env: Any = env.reset
        self.step_env: Any = env.step
        self._runner = None
        if self.backend == "async":
            import asyncio  # here, because workers of the process back end import this package

            self._runner = asyncio.Runner()
            self.reset_env = getattr(self.unwrapped, "areset", None)
            self.step_env = getattr(self.unwrapped, "astep", None)

    def require(self, condition: bool, rule: str, seen: str, expected: str) -> None:
        if not condition:
            where = f" ({self.where})" if self.where else ""
            raise AssertionError(f"check_agent_env({self.name}): {rule}{where}: {seen}, expected {expected}")

    def check_declarations(self) -> None:
        """Check what the environment says before it is played."""
        env = self.unwrapped
        self.require(isinstance(env, gym.Env), "class", f"{type(env).__name__}", "a subclass of AgentEnv")
        self.require(
            self.backend in get_args(Backend),
            'metadata["backend"]',
            repr(self.backend),
            f"one of {get_args(Backend)}",
        )
        for name in ("observation_space", "action_space"):
            space = getattr(env, name, None)
            ok = isinstance(space, gym.Space) and space.contains("é 😀 search[a]")
            self.require(ok, name, repr(space), "a space of all strings, such as UnicodeText()")
        for name in ("areset", "astep", "aclose") if self.backend == "async" else ():
            ok = inspect.iscoroutinefunction(getattr(env, name, None))
            self.require(
                ok,
                name,
                "missing or not `async def`",
                'a coroutine, which metadata["backend"]="async" promises',
            )
        reset = inspect.signature(self.reset_env)
        for name in ("seed", "options"):
            parameter = reset.parameters.get(name)
            any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in reset.parameters.values())
            self.require(
                parameter is not None or any_name,
                "reset",
                f"no parameter {name!r}",
                "reset(*, seed, options)",
            )

    def check_episode(self, episode: int, seed: int) -> None:
        """Play one episode, then the same again, which must show the same; then the same goal by its id."""
        self.where = f"episode {episode}, seed {seed}"
        rng = random.Random(seed)
        actions: list[str] = []

        def choose() -> str:
            actions.append(self._choose_action(rng))
            return actions[-1]

        first = self._play(seed, None, choose)
        self.where = f"episode {episode}, seed {seed}, repeated"
        replay = iter(actions)
        again = self._play(seed, None, lambda: next(replay, ""))
        for t, (seen, expected) in enumerate(zip(again, first)):
            self.require(
                seen == expected, "same seed, same episode", f"step {t} shows {seen!r}", repr(expected)
            )
        self.require(
            len(again) == len(first),
            "same seed, same episode",
            f"{len(again) - 1} steps",
            f"{len(first) - 1}",
        )
        goal = self.goal_id
        if goal is not None:
            self.where = f"episode {episode}, options={{'goal_id': {goal!r}}}"
            self._reset(seed, {"goal_id": goal})
            same = self.goal_id == goal
            self.require(
                same, "options['goal_id'] chooses the goal", f"goal {self.goal_id!r}", f"goal {goal!r}"
            )

    def check_wrong_actions(self, seed: int) -> None:
        """Check that actions which mean nothing are answered, not raised at."""
        for action in _WRONG_ACTIONS:
            self.where = f"the action {action[:40]!r} after a reset"
            self._reset(seed, None)
            self._step(action)

    def check_unseeded_reset(self) -> None:
        self.where = "reset without a seed"
        self._reset(None, None)

    def close(self) -> None:
        if self._runner is not None:
            try:
                if hasattr(self.unwrapped, "aclose"):
                    self._run(self.unwrapped.aclose())
            finally:
                self._runner.close()

    def _run(self, result: Any) -> Any:
        """Return `result`, or what the coroutine that it is returns."""
        if self._runner is not None and inspect.iscoroutine(result):
            coroutine: Coroutine[Any, Any, Any] = result
            return self._runner.run(coroutine)
        return result

    def _play(
        self, seed: int, options: dict[str, Any] | None, choose: Callable[[], str]
    ) -> list[tuple[Any, ...]]:
        """Return what the reset and each step showed: observation, reward, ends, state key."""
        episode = self.where
        shown: list[tuple[Any, ...]] = [(self._reset(seed, options), self._state_key())]
        for t in range(_MAX_STEPS):
            self.where = f"{episode}, step {t}"
            action = choose()
            observation, reward, terminated, truncated = self._step(action)
            shown.append((observation, reward, terminated, truncated, self._state_key()))
            if terminated or truncated:
                break
        self.where = episode
        return shown

    def _choose_action(self, rng: random.Random) -> str:
        env: Any = self.unwrapped
        state = rng.getstate()
        sampled = env.sample_action(rng) if hasattr(env, "sample_action") else None
        expert = env.oracle_action() if hasattr(env, "oracle_action") else None
        for name, action in (("sample_action", sampled), ("oracle_action", expert)):
            self.require(action is None or isinstance(action, str), name, _show(action), "a str or None")
        if sampled is not None:
            rng.setstate(state)
            again = env.sample_action(rng)
            self.require(
                again == sampled, "sample_action draws from its rng only", repr(again), repr(sampled)
            )
        if expert is not None:
            again = env.oracle_action()
            self.require(again == expert, "oracle_action changes nothing", repr(again), repr(expert))
        self.sampled = sampled
        if sampled is not None:
            return str(sampled)
        return str(expert) if expert is not None else ""

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> str:
        result = self._guard("reset", lambda: self.reset_env(seed=seed, options=options))
        ok = isinstance(result, tuple) and len(result) == 2
        self.require(ok, "reset returns a pair", _show(result), "(observation, info)")
        observation, info = result
        self._check_observation(observation)
        self.require(isinstance(info, dict), "reset's info", _show(info), "a dict")
        self.goal_id = info.get("goal_id")
        self.sampled = None
        prompt = info.get("system_prompt")
        self.require(
            prompt is None or isinstance(prompt, str), "info['system_prompt']", _show(prompt), "a str"
        )
        self._check_info(info)
        return str(observation)

    def _step(self, action: str) -> tuple[str, float, bool, bool]:
        result = self._guard("step", lambda: self.step_env(action))
        ok = isinstance(result, tuple) and len(result) == 5
        expected = "(observation, reward, terminated, truncated, info)"
        self.require(ok, "step returns five values", _show(result), expected)
        observation, reward, terminated, truncated, info = result
        self._check_observation(observation)
        ok = isinstance(reward, (int, float)) and not isinstance(reward, bool) and math.isfinite(reward)
        self.require(ok, "reward", _show(reward), "a finite float")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            self.require(isinstance(value, bool), name, _show(value), "a bool")
        self.require(
            not (terminated and truncated), "one end", "terminated and truncated", "at most one of them"
        )
        self.require(isinstance(info, dict), "step's info", _show(info), "a dict")
        self._check_step_info(action, truncated, info)
        return observation, float(reward), terminated, truncated

    def _check_step_info(self, action: str, truncated: bool, info: dict[str, Any]) -> None:
        self.require("score" in info, "info['score']", "missing", "the score so far, in [0, 1], at each step")
        self.require(
            "system_prompt" not in info, "info['system_prompt']", "given by step", "given by reset only"
        )
        goal = info.get("goal_id", self.goal_id)
        self.require(goal == self.goal_id, "one goal an episode", f"goal {goal!r}", f"goal {self.goal_id!r}")
        cause = info.get("truncation_cause")
        # Gymnasium's TimeLimit wrapper truncates without a cause; the pool reads that as "turn_limit".
        ok = cause in get_args(TruncationCause) if truncated and cause is not None else cause is None
        expected = f"one of {get_args(TruncationCause)}" if truncated else "None while not truncated"
        self.require(ok, "info['truncation_cause']", repr(cause), expected)
        if self.sampled is not None and action == self.sampled:
            error = info.get("action_error")
            self.require(
                error is None, "sample_action is valid", f"{action!r} led to {error!r}", "no action_error"
            )
        self._check_info(info)

    def _check_info(self, info: dict[str, Any]) -> None:
        if "score" in info:
            score = info["score"]
            number = isinstance(score, (int, float)) and not isinstance(score, bool)
            self.require(number and 0.0 <= score <= 1.0, "info['score']", _show(score), "a number in [0, 1]")
        kinds: tuple[tuple[str, tuple[type, ...], str], ...] = (
            ("success", (bool,), "a bool"),
            ("goal_id", (int, str), "an int or a str"),
            ("action_error", (str, type(None)), "a str or None"),
        )
        for name, types, expected in kinds:
            if name in info:
                value = info[name]
                ok = isinstance(value, types) and (name == "success" or not isinstance(value, bool))
                self.require(ok, f"info[{name!r}]", _show(value), expected)
        if self.backend == "process":
            self._check_pickles(info)

    def _check_pickles(self, info: dict[str, Any]) -> None:
        for key, value in info.items():
            try:
                ForkingPickler.dumps(value)
            except Exception as exc:
                seen = f"{_show(value)} does not pickle ({exc})"
                raise AssertionError(
                    f"check_agent_env({self.name}): info[{key!r}] ({self.where}): {seen}, expected plain "
                    "values, since the environment runs in a process of its own"
                ) from exc

    def _check_observation(self, observation: Any) -> None:
        self.require(isinstance(observation, str), "observation", _show(observation), "a str")
        inside = self.unwrapped.observation_space.contains(observation)
        self.require(
            inside, "observation", f"{len(observation)} characters", f"in {self.unwrapped.observation_space}"
        )

    def _state_key(self) -> str | None:
        env: Any = self.unwrapped
        if not hasattr(env, "state_key"):
            return None
        key = env.state_key()
        self.require(key is None or isinstance(key, str), "state_key", _show(key), "a str or None")
        self.require(
            env.state_key() == key, "state_key changes nothing", "another key when asked twice", repr(key)
        )
        return key  # type: ignore[no-any-return]

    def _guard(self, what: str, act: Callable[[], Any]) -> Any:
        try:
            return self._run(act())
        except Exception as exc:
            raise AssertionError(
                f"check_agent_env({self.name}): {what} never raises ({self.where}): {type(exc).__name__}: "
                f"{exc}; a wrong action is an observation, with info['action_error']"
            ) from exc


def _show(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"

"""Environments that count, dawdle, raise, hang, die and leak, for the tests of the pool and the checker.

A module of its own, so that the pool's worker processes can import it.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym

from trl_agent_envs import AgentEnv

Reset = tuple[str, dict[str, Any]]
Step = tuple[str, float, bool, bool, dict[str, Any]]


class CountEnv(AgentEnv):
    """Counts its steps up to `target`; the goal id is the target. An action that is a command misbehaves.

    Commands: "raise", "exit" (sys.exit), "die" (os._exit), "sleep:SECONDS", "hang", "spin" (a busy loop),
    "leak" (a child process in a session of its own; its id is the observation), "lock" (an info that does not
    pickle), "bad:FIELD" (breaks the contract in that field), "truncate:CAUSE".
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "backend": "inline"}

    def __init__(self, target: int = 3) -> None:
        self.default_target = target
        self.count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.target = (options or {}).get("goal_id", self.default_target)
        self.count = 0
        self.offset = int(self.np_random.integers(1000))
        return self._observation(), {"goal_id": self.target, "score": 0.0, "system_prompt": "Count."}

    def step(self, action: str) -> Step:
        command, _, argument = action.partition(":")
        handler = getattr(self, f"_do_{command}", None)
        if handler is not None:
            return handler(argument)  # type: ignore[no-any-return]
        error = (
            None if action in ("add", "") or action.startswith("say ") else f"unknown action {action[:20]!r}"
        )
        self.count += error is None
        done = self.count >= self.target
        info = {"score": min(1.0, self.count / self.target), "success": done, "goal_id": self.target}
        return self._observation(), 1.0, done, False, info | {"action_error": error, "pid": os.getpid()}

    def state_key(self) -> str:
        return f"{self.offset}/{self.count}"

    def oracle_action(self) -> str:
        return "add"

    def sample_action(self, rng: random.Random) -> str:
        return f"say {rng.randrange(10)}"

    def fail(self) -> None:
        raise ValueError("no such luck")

    def hang(self) -> None:
        time.sleep(1000)

    def _observation(self) -> str:
        return f"count {self.count} of {self.target}, offset {self.offset}"

    def _do_raise(self, argument: str) -> Step:
        raise ZeroDivisionError(argument or "boom")

    def _do_exit(self, argument: str) -> Step:
        sys.exit(argument or "leaving")

    def _do_die(self, argument: str) -> Step:
        os._exit(int(argument or 7))

    def _do_sleep(self, argument: str) -> Step:
        time.sleep(float(argument))
        return self.step("add")

    def _do_hang(self, argument: str) -> Step:
        time.sleep(1000)
        return self.step("add")

    def _do_spin(self, argument: str) -> Step:
        while True:
            pass

    def _do_leak(self, argument: str) -> Step:
        code = "import time; time.sleep(1000)"
        child = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
        return str(child.pid), 0.0, False, False, {}

    def _do_lock(self, argument: str) -> Step:
        return "", 0.0, False, False, {"fine": 1, "handle": threading.Lock()}

    def _do_bad(self, argument: str) -> Step:
        step = {"observation": "x", "reward": 0.0, "terminated": False, "truncated": False, "info": {}}
        step[argument] = [1]
        return tuple(step.values())  # type: ignore[return-value]

    def _do_nan(self, argument: str) -> Step:
        return "x", float("nan"), False, False, {}

    def _do_truncate(self, argument: str) -> Step:
        return "x", 0.0, False, True, {"truncation_cause": argument} if argument else {}

    def _do_both(self, argument: str) -> Step:
        return "x", 1.0, True, True, {}


class BrokenResetEnv(CountEnv):
    """Its first `failures` resets (counted in the file `tally`, so over all processes) fail as `how` says."""

    def __init__(self, tally: str, failures: int, how: str = "raise") -> None:
        super().__init__()
        self.tally, self.failures, self.how = Path(tally), failures, how

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        with self.tally.open("a") as file:
            file.write("x")
        if self.tally.stat().st_size <= self.failures:
            self.step(self.how)
        return super().reset(seed=seed, options=options)


class BrokenInitEnv(CountEnv):
    def __init__(self) -> None:
        raise OSError("the catalogue is missing")


class StubbornEnv(CountEnv):
    """Raises when it is closed."""

    def close(self) -> None:
        raise RuntimeError("cannot close")


class ClingingEnv(CountEnv):
    """Never finishes closing."""

    def close(self) -> None:
        time.sleep(1000)


class AsyncCountEnv(CountEnv):
    """`CountEnv` with coroutines: "sleep" and "hang" await, "block" holds the loop, "deaf" shuns a cancel."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "backend": "async"}
    closed: ClassVar[list[int]] = []

    async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        await asyncio.sleep(0)
        return self.reset(seed=seed, options=options)

    async def astep(self, action: str) -> Step:
        command, _, argument = action.partition(":")
        if command in ("sleep", "hang"):
            await asyncio.sleep(float(argument or 1000))
            return self.step("add")
        if command == "block":
            time.sleep(float(argument))
            return self.step("add")
        while command == "deaf":
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                command = "stays"
                await asyncio.sleep(1000)
        return self.step(action)

    async def aoracle(self) -> str:
        await asyncio.sleep(0)
        return "add"

    async def aclose(self) -> None:
        AsyncCountEnv.closed.append(id(self))


class SlowInitEnv(AsyncCountEnv):
    def __init__(self) -> None:
        super().__init__()
        time.sleep(0.5)


class PlainEnv(gym.Env[str, str]):
    """A Gymnasium environment that knows nothing of `AgentEnv`."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        return "plain", {}

    def step(self, action: str) -> Step:
        return action, 0.5, False, False, {}


def make_count(target: int = 3) -> CountEnv:
    return CountEnv(target)


def make_in_process() -> CountEnv:
    return CountEnv()


make_in_process.backend = "process"  # type: ignore[attr-defined]

for _name, _class in {
    "Count": CountEnv,
    "BrokenReset": BrokenResetEnv,
    "BrokenInit": BrokenInitEnv,
    "AsyncCount": AsyncCountEnv,
    "Plain": PlainEnv,
}.items():
    if f"fake/{_name}-v0" not in gym.registry:
        gym.register(f"fake/{_name}-v0", entry_point=f"fake_envs:{_class.__name__}")
if "fake/Limited-v0" not in gym.registry:
    gym.register("fake/Limited-v0", entry_point="fake_envs:CountEnv", max_episode_steps=2)
    gym.register("fake/AsyncLimited-v0", entry_point="fake_envs:AsyncCountEnv", max_episode_steps=2)
    gym.register("fake/NoModule-v0", entry_point="fake_envs_missing:Env")

"""Finds out which environment a pool runs, and on which back end, without building it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from trl_agent_envs.core import Backend
from trl_agent_envs.pool_protocol import EnvPoolError

EnvFactory = Callable[..., gym.Env[Any, Any]]

BACKENDS: tuple[str, ...] = get_args(Backend)


@dataclass(frozen=True)
class EnvTarget:
    """An environment that can be built any number of times.

    name: what errors call it. backend: how it runs. source: its registration, or a callable that returns it.
    kwargs: arguments for either.
    """

    name: str
    backend: Backend
    source: EnvSpec | EnvFactory
    kwargs: dict[str, Any] = field(default_factory=dict)

    def build(self) -> gym.Env[Any, Any]:
        """Return a new environment. Raises whatever the environment's constructor raises."""
        if isinstance(self.source, EnvSpec):
            return gym.make(self.source, **{"disable_env_checker": True, **self.kwargs})
        env = self.source(**self.kwargs)
        if not isinstance(env, gym.Env):
            raise TypeError(
                f"the factory {self.name} returned {type(env).__name__}, expected a gymnasium.Env"
            )
        return env


def resolve_target(
    env: str | EnvFactory, kwargs: dict[str, Any] | None, backend: Backend | None
) -> EnvTarget:
    """Return the target of a Gymnasium id ("Name-v0", "package:Name-v0") or of a factory.

    Back end: `backend` if given; else what the class says in ``metadata["backend"]``; a factory may have an
    attribute `backend`, and is run inline if not.

    Raises:
        EnvPoolError: no such environment, its module does not import, or an unknown back end.
    """
    if backend is not None and backend not in BACKENDS:
        raise EnvPoolError(f"EnvPool: backend={backend!r}, expected None or one of {BACKENDS}")
    if isinstance(env, str):
        spec = _find_spec(env)
        return EnvTarget(env, backend or _spec_backend(env, spec), spec, dict(kwargs or {}))
    if not callable(env):
        raise EnvPoolError(f"EnvPool: env is a {type(env).__name__}, expected a Gymnasium id or a callable")
    name = getattr(env, "__qualname__", None) or repr(env)
    return EnvTarget(name, backend or _declared_backend(name, env) or "inline", env, dict(kwargs or {}))


def _find_spec(env_id: str) -> EnvSpec:
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gym.spec(name)
    except ImportError as exc:
        raise EnvPoolError(
            f"EnvPool: cannot import {module!r}, the module named in the environment id {env_id!r}: {exc}. "
            "Install it or correct the part before the colon."
        ) from exc
    except gym.error.Error as exc:
        raise EnvPoolError(
            f"EnvPool: no environment {env_id!r} is registered: {exc} Import the package that "
            'registers it, or name it in the id: "package:Name-v0".'
        ) from exc


def _spec_backend(env_id: str, spec: EnvSpec) -> Backend:
    creator: object = spec.entry_point
    if isinstance(creator, str):
        try:
            creator = load_env_creator(creator)
        except (ImportError, AttributeError, ValueError) as exc:
            raise EnvPoolError(
                f"EnvPool: the entry point {spec.entry_point!r} of {env_id!r} does not load: {exc}. "
                "Correct the entry_point of its register call, or install what it imports."
            ) from exc
    # A stranger's environment may hang or crash: apart from this process is the safe place.
    return _declared_backend(env_id, creator) or "process"


def _declared_backend(name: str, creator: object) -> Backend | None:
    declared = getattr(creator, "backend", None)
    if declared is None:
        metadata = getattr(creator, "metadata", None)
        declared = metadata.get("backend") if isinstance(metadata, dict) else None
    if declared is not None and declared not in BACKENDS:
        raise EnvPoolError(f"EnvPool: {name} asks for the back end {declared!r}, expected one of {BACKENDS}")
    return declared

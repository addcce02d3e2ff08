"""`trl-agent webshop eval` and `score`: how well a policy, or a run's recorded episodes, shop."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from trl_agent.cli_webshop_options import add_compat, add_data_dir, add_goals, add_observation_mode, failed


def add_commands(commands: Any) -> None:
    """Add both commands to the sub-commands of `trl-agent webshop`."""
    play = commands.add_parser(
        "eval",
        help="play a policy on a split and sum up success and score",
        description="Play a policy on goals of a split, one of each product before a second of any. Prints "
        "success and score by department, and the parts of the reward, with 95 % bootstrap intervals over products.",
    )
    play.add_argument(
        "--policy",
        required=True,
        help="oracle (knows the product), random (clicks anything), first (buys the first result), or "
        "MODULE:FUNCTION, a function from observation and info to the action",
    )
    play.add_argument(
        "--split", default="test", help='train, dev, test, all or "original:test", ... (%(default)s)'
    )
    play.add_argument("--n", type=_positive, default=200, help="goals to play (%(default)s)")
    play.add_argument("--seed", type=int, default=0, help="chooses the goals; seeds the random policy")
    play.add_argument(
        "--max_turns", type=_positive, default=15, help="actions an episode may take (%(default)s)"
    )
    add_observation_mode(play)
    play.add_argument("--output", help="file to write the episodes to, as step records (.jsonl)")
    _add_shop_arguments(play)
    play.set_defaults(run=_guarded("eval", _eval))
    score = commands.add_parser(
        "score",
        help="sum up recorded episodes",
        description="Play the actions of a file of step records again (what a recipe writes under trajectories/) "
        "and print what `eval` prints. A score that differs from the recorded one is an error.",
    )
    score.add_argument("file", help="file of step records whose episodes have goal ids")
    _add_shop_arguments(score)
    score.set_defaults(run=_guarded("score", _score))


def _add_shop_arguments(command: argparse.ArgumentParser) -> None:
    add_data_dir(command)
    add_goals(command)
    add_compat(command)
    command.add_argument("--price_seed", type=int, default=0, help="of prices and price limits")
    command.add_argument(
        "--title_nouns", help="file of title nouns, or spacy (default: the built-in word list)"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object instead of the table")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _guarded(name: str, run: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], int]:
    """Make what a user can mend one line and exit status 1."""

    def guarded(arguments: argparse.Namespace) -> int:
        try:
            run(arguments)
        except (ValueError, TypeError, OSError, ImportError) as error:
            return failed(name, error)
        return 0

    return guarded


def _eval(arguments: argparse.Namespace) -> None:
    from trl_agent_envs.records import StepRecordWriter
    from trl_agent_envs.webshop.env import WebShopEnv
    from trl_agent_envs.webshop.evaluation import evaluate

    env = WebShopEnv(
        data_dir=arguments.data_dir,
        goals=arguments.goals,
        split=arguments.split,
        observation_mode=arguments.observation_mode,
        compat=arguments.compat,
        price_seed=arguments.price_seed,
        title_nouns=arguments.title_nouns,
        max_turns=arguments.max_turns,
    )
    policy = _policy(arguments.policy, env, arguments.seed)
    output = StepRecordWriter(arguments.output, append=False) if arguments.output else nullcontext(None)
    with output as writer:
        result = evaluate(
            policy,
            env,
            arguments.n,
            arguments.seed,
            on_episode=writer.write_episode if writer is not None else None,
        )
    _show(result, arguments.json)


def _policy(name: str, env: Any, seed: int) -> Any:
    from trl_agent_envs.webshop.policies import POLICIES

    if name in POLICIES:
        return POLICIES[name](env, seed)
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ValueError(f"--policy must be {', '.join(POLICIES)} or MODULE:FUNCTION, got {name!r}")
    if os.getcwd() not in sys.path:  # a console script does not look where it is called
        sys.path.insert(0, os.getcwd())
    policy = getattr(importlib.import_module(module), function, None)
    if not callable(policy):
        raise ValueError(f"--policy {name}: {module} has no function {function!r}")
    return policy


def _score(arguments: argparse.Namespace) -> None:
    from trl_agent_envs.records import read_episodes
    from trl_agent_envs.webshop import Shop
    from trl_agent_envs.webshop.evaluation import score_episodes

    shop = Shop.load(
        arguments.data_dir,
        compat=arguments.compat,
        price_seed=arguments.price_seed,
        title_nouns=arguments.title_nouns,
    )
    _show(
        score_episodes(read_episodes(arguments.file), shop, arguments.goals, arguments.file), arguments.json
    )


def _show(result: Any, as_json: bool) -> None:
    sys.stdout.write((json.dumps(result.to_dict()) if as_json else result.table()) + "\n")

"""The `trl-agent` command. Each sub-command imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from trl_agent import __version__, cli_webshop_eval, cli_webshop_index, cli_webshop_site
from trl_agent.cli_webshop_options import add_data_dir, add_goals, failed


def build_parser() -> argparse.ArgumentParser:
    """All sub-commands. Each sets `run`, a function from the parsed arguments to the exit status."""
    parser = argparse.ArgumentParser(
        prog="trl-agent", description="Train language-model agents by reinforcement learning."
    )
    parser.add_argument("--version", action="version", version=f"trl-agent {__version__}")
    commands = parser.add_subparsers(title="sub-commands", metavar="COMMAND")
    _add_webshop(commands)
    return parser


def _add_webshop(commands: Any) -> None:
    webshop = commands.add_parser("webshop", help="the shop", description="Commands about WebShop.")
    webshop.set_defaults(run=lambda arguments: _show_help(webshop))
    inner = webshop.add_subparsers(title="sub-commands", metavar="COMMAND")
    command = inner.add_parser(
        "splits",
        help="list the goals of the train, dev and test splits",
        description="Count the goals and products of each split, or list the goal ids with --json. Splits "
        "are disjoint by product.",
    )
    add_data_dir(command)
    add_goals(command)
    command.add_argument("--json", action="store_true", help="print {split: [goal ids]} as JSON")
    command.set_defaults(run=_webshop_splits)
    cli_webshop_index.add_commands(inner)
    cli_webshop_eval.add_commands(inner)
    cli_webshop_site.add_commands(inner)


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return 2


def _webshop_splits(arguments: argparse.Namespace) -> int:
    from trl_agent_envs.webshop import CatalogError, Shop, splits

    try:
        shop = Shop.load(arguments.data_dir)
        goals = shop.goals(arguments.goals)
    except (CatalogError, OSError) as error:
        return failed("splits", error)
    ids = splits(arguments.goals, shop)
    if arguments.json:
        print(json.dumps(ids))
        return 0
    print(f"{'split':<8}{'goals':>8}{'products':>10}")
    products = goals.table.position_of_each()
    for split, members in ids.items():
        print(f"{split:<8}{len(members):>8}{len(set(products[members].tolist())):>10}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; `argv` defaults to the process's own arguments. Returns the exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        return _show_help(parser)
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())

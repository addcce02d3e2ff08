"""The `trl-agent` command. Each sub-command imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_agent import __version__

if TYPE_CHECKING:
    from trl_agent_envs.webshop.session_logs import Conversion


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
    command.add_argument(
        "--data_dir", help="folder of WebShop's data files (default: the embedded catalogue)"
    )
    command.add_argument("--goals", choices=["synthetic", "human"], default="synthetic", help="which goals")
    command.add_argument("--json", action="store_true", help="print {split: [goal ids]} as JSON")
    command.set_defaults(run=_webshop_splits)
    _add_webshop_serve(inner)
    _add_webshop_convert(inner)


def _add_shop(command: argparse.ArgumentParser) -> None:
    """The options that say which shop it is and what step records show of it."""
    command.add_argument(
        "--data_dir", help="folder of WebShop's data files (default: the embedded catalogue)"
    )
    command.add_argument(
        "--compat",
        choices=["strict", "original"],
        default="strict",
        help="'original' keeps the original's faults (default: strict)",
    )
    command.add_argument(
        "--observation_mode",
        choices=["text", "text_rich"],
        default="text",
        help="what the prompts of step records show, as the recipes' flag (default: text)",
    )


def _add_webshop_serve(commands: Any) -> None:
    command = commands.add_parser(
        "serve",
        help="the shop as a web site",
        description="Serve the shop as web pages, for people and browser agents. / begins a visit with a goal drawn "
        "from the split, /fixed_17 one with goal 17. Ctrl-C ends it.",
    )
    _add_shop(command)
    command.add_argument("--goals", choices=["synthetic", "human"], default="synthetic", help="which goals")
    command.add_argument(
        "--split", default="train", help="train, dev, test, all or original:test and so on (default: train)"
    )
    command.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    command.add_argument("--port", type=int, default=3000, help="port to listen on; 0 is any free one")
    command.add_argument(
        "--record",
        metavar="DIR",
        help="add each visit that ends to DIR/demonstrations.jsonl, as step records that the recipes read",
    )
    command.add_argument("--max_turns", type=int, default=100, help="actions a visit may take (default: 100)")
    command.set_defaults(run=_webshop_serve)


def _add_webshop_convert(commands: Any) -> None:
    command = commands.add_parser(
        "convert",
        help="session logs of the original's site to step records",
        description="Convert session logs of the original WebShop's site (JSON lines, one a page) to step records. "
        "What was done is worked out from the pages and done again in the shop; a visit for which that fails is "
        "left out, and why is printed.",
    )
    command.add_argument("logs", metavar="LOG", nargs="+", help="a log file")
    command.add_argument(
        "--out", required=True, metavar="FILE", help="file of step records to write (.jsonl)"
    )
    _add_shop(command)
    command.add_argument(
        "--strict", action="store_true", help="fail at the first visit that cannot be converted"
    )
    command.set_defaults(run=_webshop_convert)


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return 2


def _webshop_splits(arguments: argparse.Namespace) -> int:
    from trl_agent_envs.webshop import CatalogError, Shop, splits

    try:
        shop = Shop.load(arguments.data_dir)
        goals = shop.goals(arguments.goals)
    except (CatalogError, OSError) as error:
        print(f"trl-agent webshop splits: {error}", file=sys.stderr)
        return 1
    ids = splits(arguments.goals, shop)
    if arguments.json:
        print(json.dumps(ids))
        return 0
    print(f"{'split':<8}{'goals':>8}{'products':>10}")
    for split, members in ids.items():
        print(f"{split:<8}{len(members):>8}{len({goals[goal_id].asin for goal_id in members}):>10}")
    return 0


def _webshop_serve(arguments: argparse.Namespace) -> int:
    from trl_agent_envs.webshop import Shop

    try:
        from trl_agent_envs.webshop.site import Recorder, Site, address, bind, local_names, run
    except ModuleNotFoundError as error:
        print(
            f"trl-agent webshop serve: needs {str(error.name).partition('.')[0]}; "
            "run pip install 'trl-agent[site]'",
            file=sys.stderr,
        )
        return 1
    recorder = None
    try:
        shop = Shop.load(arguments.data_dir, compat=arguments.compat)
        if arguments.record is not None:
            recorder = Recorder(arguments.record, arguments.observation_mode)
        site = Site(
            shop,
            goals=arguments.goals,
            split=arguments.split,
            max_turns=arguments.max_turns,
            recorder=recorder,
            hosts=local_names(arguments.host),
        )
        with bind(arguments.host, arguments.port) as listening:
            if recorder is not None:
                if recorder.cut:
                    print(f"cut off an unfinished episode ({recorder.cut} bytes)")
                print(f"visits that end are added to {recorder.path}")
            print(f"{len(shop.catalog)} products, {len(site.drawn)} goals to draw from")
            print(f"Open {address(listening)} in a browser; Ctrl-C ends it.", flush=True)
            run(site, listening)
    except (ValueError, OSError) as error:
        print(f"trl-agent webshop serve: {error}", file=sys.stderr)
        return 1
    finally:
        if recorder is not None:
            recorder.close()
    return 0


def _webshop_convert(arguments: argparse.Namespace) -> int:
    from trl_agent_envs.records import StepRecordWriter
    from trl_agent_envs.webshop import Shop
    from trl_agent_envs.webshop.session_logs import Conversion, convert_logs

    out, conversion = Path(arguments.out), Conversion()
    part = out.with_name(f".part-{out.name}")
    try:
        shop = Shop.load(arguments.data_dir, compat=arguments.compat)
        with StepRecordWriter(part, append=False) as writer:
            for steps in convert_logs(
                arguments.logs,
                shop,
                conversion,
                observation_mode=arguments.observation_mode,
                strict=arguments.strict,
            ):
                writer.write_episode(steps)
        if conversion.episodes:
            part.replace(out)
    except (ValueError, OSError) as error:
        print(f"trl-agent webshop convert: {error}", file=sys.stderr)
        return 1
    finally:
        part.unlink(missing_ok=True)
    return _report(conversion, out)


def _report(conversion: Conversion, out: Path) -> int:
    """Print what became of the logs. Returns the exit status: 1 where nothing was converted."""
    for problem in conversion.problems:
        print(problem, file=sys.stderr)
    total = conversion.episodes + conversion.skipped.total()
    print(
        f"{conversion.episodes} of {total} visits converted" + (f" to {out}" if conversion.episodes else "")
    )
    for reason, number in conversion.skipped.most_common():
        print(f"{number} left out: {reason}")
    for number, what in (
        (conversion.other_lists, "pages list other products here than in the log"),
        (conversion.other_scores, "purchases have another score here; the log's is kept as logged_score"),
        (conversion.after_purchase, "pages left out: their visitor had bought already"),
    ):
        if number:
            print(f"{number} {what}")
    if not conversion.episodes:
        print(
            f"trl-agent webshop convert: no visit could be converted; {out} is not written", file=sys.stderr
        )
    return 0 if conversion.episodes else 1


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

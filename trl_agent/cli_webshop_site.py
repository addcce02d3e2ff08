"""`trl-agent webshop serve` and `convert`: the shop as a web site, and logs of such sites as step records."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_agent.cli_webshop_options import add_compat, add_data_dir, add_goals, add_observation_mode, failed

if TYPE_CHECKING:
    from trl_agent_envs.webshop.session_logs import Conversion


def add_commands(commands: Any) -> None:
    """Add both commands to the sub-commands of `trl-agent webshop`."""
    _add_serve(commands)
    _add_convert(commands)


def _add_shop(command: argparse.ArgumentParser) -> None:
    """The options that say which shop it is and what step records show of it."""
    add_data_dir(command)
    add_compat(command)
    add_observation_mode(command)


def _add_serve(commands: Any) -> None:
    command = commands.add_parser(
        "serve",
        help="the shop as a web site",
        description="Serve the shop as web pages, for people and browser agents. / begins a visit with a goal drawn "
        "from the split, /fixed_17 one with goal 17. Ctrl-C ends it.",
    )
    _add_shop(command)
    add_goals(command)
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
    command.set_defaults(run=_serve)


def _add_convert(commands: Any) -> None:
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
    command.set_defaults(run=_convert)


def _serve(arguments: argparse.Namespace) -> int:
    from trl_agent_envs.webshop.env import WebShopEnv

    try:
        from trl_agent_envs.webshop.site import Recorder, Site, address, bind, local_names, run
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        return failed("serve", f"needs {missing}; run pip install 'trl-agent[site]'")
    recorder = None
    try:
        env = WebShopEnv(
            data_dir=arguments.data_dir,
            goals=arguments.goals,
            split=arguments.split,
            compat=arguments.compat,
            observation_mode=arguments.observation_mode,
            max_turns=arguments.max_turns,
        )
        if arguments.record is not None:
            recorder = Recorder(arguments.record, arguments.observation_mode)
        site = Site(env, recorder=recorder, hosts=local_names(arguments.host))
        with bind(arguments.host, arguments.port) as listening:
            if recorder is not None:
                if recorder.cut:
                    _say(f"cut off an unfinished episode ({recorder.cut} bytes)")
                _say(f"visits that end are added to {recorder.path}")
            _say(f"{len(env.shop.catalog)} products; goals are drawn from {arguments.split}")
            _say(f"Open {address(listening)} in a browser; Ctrl-C ends it.")
            run(site, listening)
    except (ValueError, OSError) as error:
        return failed("serve", error)
    finally:
        if recorder is not None:
            recorder.close()
    return 0


def _convert(arguments: argparse.Namespace) -> int:
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
        return failed("convert", error)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return _report(conversion, out)


def _report(conversion: Conversion, out: Path) -> int:
    """Print what became of the logs. Returns the exit status: 1 where nothing was converted."""
    for problem in conversion.problems:
        sys.stderr.write(f"{problem}\n")
    total = conversion.episodes + conversion.skipped.total()
    where = f" to {out}" if conversion.episodes else ""
    _say(f"{conversion.episodes} of {total} visits converted{where}")
    for reason, number in conversion.skipped.most_common():
        _say(f"{number} left out: {reason}")
    for number, what in (
        (conversion.other_lists, "pages list other products here than in the log"),
        (conversion.other_scores, "purchases have another score here; the log's is kept as logged_score"),
        (conversion.after_purchase, "pages left out: their visitor had bought already"),
    ):
        if number:
            _say(f"{number} {what}")
    if conversion.episodes:
        return 0
    return failed("convert", f"no visit could be converted; {out} is not written")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()

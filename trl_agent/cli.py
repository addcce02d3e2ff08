"""The `trl-agent` command. Each sub-command imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from trl_agent import __version__


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
    webshop = commands.add_parser(
        "webshop", help="the shop", description="Commands about WebShop's catalogue."
    )
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
    _add_webshop_index(inner)
    _add_webshop_generate(inner)


def _add_webshop_index(webshop: Any) -> None:
    command = webshop.add_parser(
        "index",
        help="build a catalogue of any size on the disk, to be opened in a moment",
        description="Build catalogue, search index, goals and splits in a folder that data_dir can name. The "
        "folder appears when everything is done; a build that is stopped leaves nothing that loads.",
    )
    command.add_argument(
        "data",
        metavar="DATA",
        help="folder of WebShop's data files, or a products file in one, or synthetic:N for N generated products",
    )
    command.add_argument("--out", required=True, metavar="DIR", help="the folder to build")
    command.add_argument(
        "--price_seed",
        type=int,
        default=0,
        help="draws prices of products with a price range, and the price limits of the goals (default: 0)",
    )
    command.add_argument("--overwrite", action="store_true", help="replace the built catalogue at DIR")
    command.set_defaults(run=_webshop_index)


def _add_webshop_generate(webshop: Any) -> None:
    command = webshop.add_parser(
        "generate",
        help="write generated products in the format of WebShop's data files",
        description="Write a catalogue of generated products in the format of WebShop's data files. A larger "
        "catalogue begins with the smaller one.",
    )
    command.add_argument("--num_products", type=int, required=True, metavar="N", help="how many products")
    command.add_argument("--out", required=True, metavar="DIR", help="the folder to write; it must be new")
    command.add_argument("--seed", type=int, default=0, help="another catalogue for each seed (default: 0)")
    command.set_defaults(run=_webshop_generate)


def _show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return 2


def _webshop_splits(arguments: argparse.Namespace) -> int:
    from trl_agent_envs.webshop import Shop, splits

    try:
        shop = Shop.load(arguments.data_dir)
        goals = shop.goals(arguments.goals)
    except (ValueError, OSError) as error:
        print(f"trl-agent webshop splits: {error}", file=sys.stderr)
        return 1
    ids = splits(arguments.goals, shop)
    if arguments.json:
        print(json.dumps(ids))
        return 0
    print(f"{'split':<8}{'goals':>8}{'products':>10}")
    products = goals.table.position_of_each()
    for split, members in ids.items():
        print(f"{split:<8}{len(members):>8}{len(set(products[members].tolist())):>10}")
    return 0


def _webshop_index(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from trl_agent_envs.webshop import CatalogError
    from trl_agent_envs.webshop.store import Store
    from trl_agent_envs.webshop.store_build import build_store

    bars: dict[str, tqdm[Any]] = {}

    def show(phase: str, done: int, total: int) -> None:
        if phase not in bars:
            for earlier in bars.values():
                earlier.close()
            # a terminal only: in a log file the lines would pile up
            bars[phase] = tqdm(total=total, desc=phase, unit="", unit_scale=True, disable=None)
        bars[phase].update(done - bars[phase].n)

    started = time.monotonic()
    try:
        out = build_store(
            arguments.data,
            arguments.out,
            price_seed=arguments.price_seed,
            overwrite=arguments.overwrite,
            progress=show,
        )
        built = Store(out)
    except (CatalogError, OSError) as error:
        print(f"trl-agent webshop index: {error}", file=sys.stderr)
        return 1
    finally:
        for bar in bars.values():
            bar.close()
    goals = ", ".join(f"{len(table.order)} {name} goals" for name, table in built.tables.items())
    size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    seconds = time.monotonic() - started
    print(f"{out}: {len(built.catalog)} products, {goals or 'no goals'}, {size:.0f} MB, {seconds:.0f} s")
    return 0


def _webshop_generate(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from trl_agent_envs.webshop import CatalogError
    from trl_agent_envs.webshop.synthetic_files import write_files

    with tqdm(total=arguments.num_products, desc="products", unit="", disable=None) as bar:
        try:
            out = write_files(
                arguments.num_products,
                arguments.out,
                seed=arguments.seed,
                progress=lambda done: bar.update(done - bar.n),
            )
        except (CatalogError, OSError) as error:
            print(f"trl-agent webshop generate: {error}", file=sys.stderr)
            return 1
    print(f"{out}: {arguments.num_products} products in {sum(1 for _ in out.iterdir())} files")
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

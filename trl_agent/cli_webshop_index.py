"""`trl-agent webshop index` and `generate`: catalogues of any size on the disk."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from trl_agent.cli_webshop_options import failed


def add_commands(commands: Any) -> None:
    """Add both commands to the sub-commands of `trl-agent webshop`."""
    index = commands.add_parser(
        "index",
        help="build a catalogue of any size on the disk, to be opened in a moment",
        description="Build catalogue, search index, goals and splits in a folder that data_dir can name. The "
        "folder appears when everything is done; a build that is stopped leaves nothing that loads.",
    )
    index.add_argument(
        "data",
        metavar="DATA",
        help="folder of WebShop's data files, or a products file in one, or synthetic:N for N generated products",
    )
    index.add_argument("--out", required=True, metavar="DIR", help="the folder to build")
    index.add_argument(
        "--price_seed",
        type=int,
        default=0,
        help="draws prices of products with a price range, and the price limits of the goals (default: 0)",
    )
    index.add_argument("--overwrite", action="store_true", help="replace the built catalogue at DIR")
    index.set_defaults(run=_index)
    generate = commands.add_parser(
        "generate",
        help="write generated products in the format of WebShop's data files",
        description="Write a catalogue of generated products in the format of WebShop's data files. A larger "
        "catalogue begins with the smaller one.",
    )
    generate.add_argument("--num_products", type=int, required=True, metavar="N", help="how many products")
    generate.add_argument("--out", required=True, metavar="DIR", help="the folder to write; it must be new")
    generate.add_argument("--seed", type=int, default=0, help="another catalogue for each seed (default: 0)")
    generate.set_defaults(run=_generate)


class _Bars:
    """A progress bar for each phase, one after the other. On a terminal only: in a log file lines pile up."""

    def __init__(self) -> None:
        self._phase = ""
        self._bar: Any = None

    def show(self, phase: str, done: int, total: int) -> None:
        from tqdm import tqdm

        if phase != self._phase:
            self.close()
            self._phase = phase
            self._bar = tqdm(total=total, desc=phase, unit="", unit_scale=True, disable=None)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _index(arguments: argparse.Namespace) -> int:
    from trl_agent_envs.webshop import CatalogError
    from trl_agent_envs.webshop.store import Store
    from trl_agent_envs.webshop.store_build import build_store

    bars, started = _Bars(), time.monotonic()
    try:
        out = build_store(
            arguments.data,
            arguments.out,
            price_seed=arguments.price_seed,
            overwrite=arguments.overwrite,
            progress=bars.show,
        )
        built = Store(out)
    except (CatalogError, OSError) as error:
        return failed("index", error)
    except KeyboardInterrupt:
        return failed("index", "stopped; nothing is left of the build")
    finally:
        bars.close()
    goals = ", ".join(f"{len(table.order)} {name} goals" for name, table in built.tables.items())
    size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    seconds = time.monotonic() - started
    sys.stdout.write(
        f"{out}: {len(built.catalog)} products, {goals or 'no goals'}, {size:.0f} MB, {seconds:.0f} s\n"
    )
    return 0


def _generate(arguments: argparse.Namespace) -> int:
    from trl_agent_envs.webshop import CatalogError
    from trl_agent_envs.webshop.synthetic_files import write_files

    bars, total = _Bars(), arguments.num_products
    try:
        out = write_files(
            total,
            arguments.out,
            seed=arguments.seed,
            progress=lambda done: bars.show("products", done, total),
        )
    except (CatalogError, OSError) as error:
        return failed("generate", error)
    except KeyboardInterrupt:
        return failed("generate", "stopped; nothing is left of the files")
    finally:
        bars.close()
    sys.stdout.write(f"{out}: {total} products in {sum(1 for _ in out.iterdir())} files\n")
    return 0

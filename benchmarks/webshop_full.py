"""WebShop at full size: building the catalogue, opening it, searching it. Each is measured in a process of its own.

The generator's products are written in the original's file format (not timed), then built as `trl-agent webshop index`
builds them. Before the start is timed, the built files are put out of the operating system's memory. Queries are
taken from goals: 2 to 6 words of an instruction, and whole instructions; none comes twice.

    python benchmarks/webshop_full.py [--quick] [--num_products N] [--folder DIR]

Needs about 3 GB of disk for the full size, and some minutes. Prints a table, then one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from commit import commit

FULL = 1_180_000
QUERIES = 1000


def full_figures(num_products: int = FULL, folder: str | Path | None = None) -> dict[str, float]:
    """Return the figures: seconds, milliseconds, megabytes (peak resident size of the process).

    Args:
        folder: where the files go, and stay; None is a temporary folder.
    """
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary if folder is None else folder)
        data, store = place / f"data_{num_products}", place / f"store_{num_products}"
        if not data.exists():
            _measure("generate", data, num_products)
        built = _measure("build", data, store)
        for file in store.iterdir():
            _forget(file)
        started = _measure("start", store)
        searched = _measure("search", store)
        return {
            "full_products": float(num_products),
            "full_index_s": built["seconds"],
            "full_index_cpu_s": built["cpu_seconds"],
            "full_index_peak_mb": built["peak_mb"],
            "full_disk_mb": sum(file.stat().st_size for file in store.iterdir()) / 1e6,
            "full_start_s": started["seconds"],
            "full_start_rss_mb": started["peak_mb"],
            "full_search_p50_ms": searched["p50_ms"],
            "full_search_p95_ms": searched["p95_ms"],
            "full_rss_mb": searched["peak_mb"],
            **{name: value for name, value in searched.items() if name.startswith("full_")},
        }


def _measure(what: str, *arguments: object) -> dict[str, float]:
    """Run one of the measurements below in a new process."""
    command = [sys.executable, __file__, "--measure", what, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _forget(file: Path) -> None:
    """Put a file out of the operating system's memory, so that the next process reads it from the disk."""
    if hasattr(os, "posix_fadvise"):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _memory_mb(field: str) -> float:
    """A size of this process: VmHWM is the peak of all, RssAnon what it shares with nobody. On Linux only."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1e3 if found else float("nan")


def measure_generate(data: str, num_products: str) -> dict[str, float]:
    from trl_agent_envs.webshop.synthetic_files import write_files

    write_files(int(num_products), data)
    return {}


def measure_build(data: str, store: str) -> dict[str, float]:
    started = time.perf_counter()
    from trl_agent_envs.webshop.store_build import build_store

    build_store(data, store, overwrite=True)
    # the processor's seconds too: on a busy machine they are what the build itself takes
    return {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time()}


def measure_start(store: str) -> dict[str, float]:
    started = time.perf_counter()
    import gymnasium

    import trl_agent_envs  # noqa: F401 - registers the environment

    env = gymnasium.make("trl_agent/WebShop-v0", data_dir=store)
    env.reset(seed=0)
    return {"seconds": time.perf_counter() - started}


def queries(goals: list[str], rng: random.Random) -> list[str]:
    """One query a goal: by turns 2 to 6 words of the instruction in a row, and all of it without the price."""
    found = dict[str, None]()
    for number, goal in enumerate(goals):
        wish = goal.partition(", and price lower than")[0]
        words = wish.split()
        start = rng.randrange(max(1, len(words) - 5))
        found[" ".join(words[start : start + rng.randint(2, 6)]) if number % 2 else wish] = None
    return list(found)


def measure_search(store: str) -> dict[str, float]:
    from trl_agent_envs.webshop.env import WebShopEnv

    env = WebShopEnv(store, split="all")
    rng = random.Random(0)
    drawn = [env.goals[rng.randrange(len(env.goals))].instruction for _ in range(QUERIES)]
    times: dict[bool, list[float]] = {False: [], True: []}
    for query in queries(drawn, rng):
        started = time.perf_counter()
        found = env.shop.search(query)
        spent = 1e3 * (time.perf_counter() - started)
        if found:  # what finds nothing ("i want to") is quick, and would flatter
            times[len(query.split()) > 6].append(spent)
    env.reset(seed=0)
    started = time.perf_counter()
    steps = 3000
    for _ in range(steps):  # so that the memory is that of a process at work
        action = env.sample_action(rng)
        if action is None:
            env.reset()
        else:
            env.step(action)
    everything = sorted(times[False] + times[True])
    return {
        "p50_ms": statistics.median(everything),
        "p95_ms": everything[int(0.95 * len(everything))],
        "full_search_short_p95_ms": statistics.quantiles(times[False], n=20)[-1],
        "full_search_long_p95_ms": statistics.quantiles(times[True], n=20)[-1],
        "full_search_max_ms": everything[-1],
        "full_steps_per_s": steps / (time.perf_counter() - started),
        "full_private_mb": _memory_mb("RssAnon"),
    }


MEASUREMENTS = {
    "generate": measure_generate,
    "build": measure_build,
    "start": measure_start,
    "search": measure_search,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="30,000 products")
    parser.add_argument("--num_products", type=int, default=FULL, help="how many products")
    parser.add_argument("--folder", help="keep the files here (default: a temporary folder)")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, *rest = arguments.measure
        found = MEASUREMENTS[name](*rest)
        print(json.dumps({**found, "peak_mb": _memory_mb("VmHWM")}))
        return
    figures = full_figures(30_000 if arguments.quick else arguments.num_products, arguments.folder)
    for name, value in figures.items():
        print(f"{name:<28}{value:>14.2f}")
    print(json.dumps({"benchmark": "webshop_full", "commit": commit(), "ratios": {}, "figures": figures}))


if __name__ == "__main__":
    main()

"""WebShop's speed, start, memory and noun tagger, each in processes of its own.

    python benchmarks/webshop.py [--quick] [--seeds N] [--data_dir PATH] [--full]

The catalogue is the embedded one and, with `--data_dir` (or WEBSHOP_DATA, a folder that holds `data/`), the original's
1000 products, which then is the main one. The tagger is compared where recorded output of the original lies beside the
data, in `golden/`. `--full` adds the full-size figures of `webshop_full.py` (minutes, gigabytes of disk).

Prints a table, then one JSON object as the last line. Memory is read from /proc, so those figures are for Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from commit import commit

ROOT = Path(__file__).resolve().parents[1]
MB = 1024 * 1024
ORIGINAL = {"steps_per_s": 45.0, "resets_per_s": 340.0, "start_s": 3.2, "rss_mb": 605.0}
"""The original program on a two-core machine of this kind, 1000 products (its start took 3.2 to 4.7 s)."""

# Each measurement that has a state of its own is a function `measure_NAME`, run in a new interpreter by `child`.


def measure_speed(data_dir: str | None, mode: str, steps: int, repeats: int) -> dict[str, Any]:
    """Random valid actions in one thread; resets included, as in the loop that the original was measured in."""
    import random

    env = make_env(data_dir, observation_mode=mode)
    env.reset(seed=0)
    wall, cpu = [], []
    for repeat in range(repeats):
        rng = random.Random(repeat)
        started, busy = time.perf_counter(), time.process_time()
        walk(env, rng, steps)
        wall.append(steps / (time.perf_counter() - started))
        cpu.append(steps / (time.process_time() - busy))
    return {"wall": wall, "cpu": cpu}


def measure_resets(data_dir: str | None, number: int, repeats: int) -> dict[str, Any]:
    """Resets with a seed each, as a trainer makes them, and without."""
    env = make_env(data_dir)
    seeded, plain = [], []
    for repeat in range(repeats):
        started = time.perf_counter()
        for seed in range(number):
            env.reset(seed=repeat * number + seed)
        seeded.append(number / (time.perf_counter() - started))
        started = time.perf_counter()
        for _ in range(number):
            env.reset()
        plain.append(number / (time.perf_counter() - started))
    return {"seeded": seeded, "plain": plain}


def measure_search(data_dir: str | None, number: int) -> dict[str, Any]:
    """Milliseconds of one search each for goals' instructions without the price, none of them asked before."""
    shop = make_env(data_dir).shop
    goals = shop.goals("synthetic")
    queries = {
        goal.instruction.partition(", and price lower")[0] for goal in goals[:: max(1, len(goals) // number)]
    }
    times = []
    for query in sorted(queries):
        started = time.perf_counter()
        shop.search(query)
        times.append(1000 * (time.perf_counter() - started))
    return {"median": statistics.median(times), "p95": statistics.quantiles(times, n=20)[-1]}


def measure_start(data_dir: str | None, began: float) -> dict[str, Any]:
    """Seconds from before the interpreter started (`began`, of the parent's monotonic clock) to the first page."""
    make_env(data_dir).reset(seed=0)
    return {"wall": time.monotonic() - began, "cpu": time.process_time()}


def measure_memory(data_dir: str | None, steps: int, extra: int) -> dict[str, Any]:
    """RSS of one environment after some steps, and what each further one in the process adds."""
    import random

    env = make_env(data_dir)
    rng = random.Random(0)
    walk(env, rng, steps)
    first, peak = status_mb("VmRSS"), status_mb("VmHWM")
    others = []
    for seed in range(extra):
        other = make_env(data_dir)
        other.reset(seed=seed)
        walk(other, rng, 20)
        others.append(other)
    return {"rss": first, "peak": peak, "extra": (status_mb("VmRSS") - first) / len(others)}


def measure_worker(data_dir: str | None, steps: int) -> dict[str, Any]:
    """Play, say so, and wait to be measured."""
    import random

    env = make_env(data_dir)
    walk(env, random.Random(0), steps)
    print("ready", flush=True)
    sys.stdin.readline()
    return {}


MEASURES = {
    "speed": measure_speed,
    "resets": measure_resets,
    "search": measure_search,
    "start": measure_start,
    "memory": measure_memory,
    "worker": measure_worker,
}


def make_env(data_dir: str | None, **kwargs: Any) -> Any:
    from trl_agent_envs.webshop.env import WebShopEnv

    return WebShopEnv(data_dir=data_dir, split="all", **kwargs)


def walk(env: Any, rng: Any, steps: int) -> None:
    """Do `steps` random valid actions, with a reset whenever an episode ends."""
    env.reset()
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.sample_action(rng))
        if terminated or truncated:
            env.reset()


def status_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / MB
    raise RuntimeError(f"/proc/self/status has no {field}")


def pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / MB
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no Pss")


# --- the parent


def command(name: str, arguments: dict[str, Any]) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), "--measure", name, json.dumps(arguments)]


def environment(cache: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "envs"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "TRL_AGENT_CACHE": cache, "OMP_NUM_THREADS": "1"}


def child(cache: str, name: str, **arguments: Any) -> dict[str, Any]:
    """Run one measurement in a new interpreter."""
    done = subprocess.run(
        command(name, arguments), env=environment(cache), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"measurement {name} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def start_figures(data_dir: str | None, repeats: int) -> dict[str, float]:
    """Starts with an empty cache folder, and with the same folder again."""
    seconds: dict[str, list[float]] = {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            for state in ("cold", "cached"):
                start = child(cache, "start", data_dir=data_dir, began=time.monotonic())
                seconds.setdefault(f"start_{state}_s", []).append(start["wall"])
                seconds.setdefault(f"start_{state}_cpu_s", []).append(start["cpu"])
    return {name: statistics.median(values) for name, values in seconds.items()}


def workers_pss(data_dir: str | None, cache: str, number: int, steps: int) -> list[float]:
    """PSS of `number` processes with an environment each, all of them at work at once."""
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    command("worker", {"data_dir": data_dir, "steps": steps}),
                    env=environment(cache),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(number)
        ]
        try:
            for worker in workers:
                assert worker.stdout is not None
                if worker.stdout.readline() != "ready\n":
                    raise SystemExit("a worker failed before it could be measured")
            return [pss_mb(worker.pid) for worker in workers]
        finally:
            for worker in workers:
                worker.communicate("\n")


def catalogue_figures(data_dir: str | None, sizes: argparse.Namespace) -> dict[str, float]:
    """All figures of one catalogue."""
    figures = start_figures(data_dir, sizes.repeats)
    with tempfile.TemporaryDirectory() as cache:
        child(cache, "start", data_dir=data_dir, began=time.monotonic())  # the cache is there from now on
        for mode in ("text", "text_rich"):
            speed = child(
                cache, "speed", data_dir=data_dir, mode=mode, steps=sizes.steps, repeats=sizes.repeats
            )
            figures[f"steps_per_s_{mode}"] = statistics.median(speed["wall"])
            figures[f"steps_per_s_{mode}_first_run"] = speed["wall"][0]
            figures[f"steps_per_cpu_s_{mode}"] = statistics.median(speed["cpu"])
        resets = child(cache, "resets", data_dir=data_dir, number=sizes.resets, repeats=sizes.repeats)
        figures["resets_per_s"] = statistics.median(resets["seeded"])
        figures["resets_per_s_unseeded"] = statistics.median(resets["plain"])
        search = child(cache, "search", data_dir=data_dir, number=sizes.steps // 4)
        figures["search_ms_median"], figures["search_ms_p95"] = search["median"], search["p95"]
        memory = child(cache, "memory", data_dir=data_dir, steps=sizes.steps, extra=sizes.extra)
        figures["rss_mb"], figures["rss_peak_mb"] = memory["rss"], memory["peak"]
        figures["extra_env_mb"] = memory["extra"]
        figures["one_worker_pss_mb"] = workers_pss(data_dir, cache, 1, sizes.steps)[0]
        figures["worker_pss_mb"] = statistics.mean(workers_pss(data_dir, cache, sizes.workers, sizes.steps))
    return figures


def tagger_figures(data_dir: str, golden: Path, spacy_model: str) -> dict[str, float]:
    """How far the built-in nouns, and spaCy's where it is installed, agree with the original's, and the rewards."""
    from trl_agent_envs.webshop import Shop
    from trl_agent_envs.webshop.nouns import title_nouns

    def lines(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (golden / name).read_text(encoding="utf-8").splitlines()]

    nouns = {row["asin"]: set(row["nouns"]) for row in lines("title_nouns_sm360.jsonl")}
    rewards = lines("rewards.jsonl")
    sources: dict[str, str | None] = {"tagger": None}
    try:
        title_nouns(f"spacy:{spacy_model}")
    except ImportError:
        print(f"spaCy with {spacy_model} is not installed: only the built-in tagger is compared")
    else:
        sources["spacy"] = f"spacy:{spacy_model}"
    figures: dict[str, float] = {}
    for name, source in sources.items():
        tag = title_nouns(source)
        shop = Shop.load(data_dir, compat="original", title_nouns=source)
        found = {product.asin: set(tag(product)) for product in shop.catalog if product.asin in nouns}
        shared = sum(len(found[asin] & nouns[asin]) for asin in found)
        precision = shared / sum(map(len, found.values()))
        recall = shared / sum(len(nouns[asin]) for asin in found)
        figures[f"{name}_noun_precision"], figures[f"{name}_noun_recall"] = precision, recall
        figures[f"{name}_noun_f1"] = 2 * precision * recall / (precision + recall)
        figures[f"{name}_titles_identical"] = sum(found[a] == nouns[a] for a in found) / len(found)
        differences = [
            abs(
                shop.reward(
                    shop.goals(row["set"])[row["goal"]], row["asin"], row["options"], price=row["price"]
                ).total
                - row["total"]
            )
            for row in rewards
        ]
        figures[f"{name}_reward_agreement"] = statistics.mean(d < 1e-9 for d in differences)
        figures[f"{name}_reward_mean_abs_diff"] = statistics.mean(differences)
    return figures


def full() -> dict[str, float]:
    try:
        from webshop_full import full_figures  # in this folder, which is on the path of a script
    except ImportError as error:
        raise SystemExit(f"--full needs benchmarks/webshop_full.py: {error}") from error
    figures: dict[str, float] = full_figures()
    return figures


def print_table(columns: dict[str, dict[str, float]], others: dict[str, float]) -> None:
    targets = {
        "steps_per_s_text": ">= 4500", "steps_per_s_text_rich": ">= 4500", "resets_per_s": ">= 20000",
        "start_cold_s": "< 1.5", "start_cached_s": "< 0.5", "rss_mb": "< 250", "extra_env_mb": "< 2",
        "full_start_s": "< 5", "full_search_p95_ms": "< 50", "full_rss_mb": "< 1500",
        "full_index_peak_mb": "< 6000",
    }  # fmt: skip
    print(f"{'figure':<34}" + "".join(f"{name:>14}" for name in columns) + f"{'target':>12}")
    for key in next(iter(columns.values())):
        row = "".join(f"{figures[key]:>14,.3f}" for figures in columns.values())
        print(f"{key:<34}{row}{targets.get(key, ''):>12}")
    empty = " " * 14 * (len(columns) - 1)
    for key, value in others.items():
        if isinstance(value, (int, float)):
            print(f"{key:<34}{value:>14,.3f}{empty}{targets.get(key, ''):>12}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer steps, resets, environments and workers")
    parser.add_argument("--seeds", type=int, default=5, help="repetitions of each timing; medians are shown")
    parser.add_argument("--data_dir", help="folder in the original's format (default: WEBSHOP_DATA/data)")
    parser.add_argument("--full", action="store_true", help="the full-size figures too")
    parser.add_argument("--spacy_model", default="en_core_web_sm", help="name or folder (%(default)s)")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, values = arguments.measure
        print(json.dumps(MEASURES[name](**json.loads(values))))
        return
    sys.path[:0] = [str(ROOT), str(ROOT / "envs")]  # the sources beside this script, as in the children
    sizes = argparse.Namespace(steps=2000, resets=20_000, extra=200, workers=16, repeats=arguments.seeds)
    if arguments.quick:
        sizes = argparse.Namespace(steps=300, resets=1000, extra=20, workers=3, repeats=1)
    data_dir = arguments.data_dir
    if data_dir is None and os.environ.get("WEBSHOP_DATA"):
        data_dir = str(Path(os.environ["WEBSHOP_DATA"]) / "data")
    columns = {"embedded": catalogue_figures(None, sizes)}
    others: dict[str, float] = {}
    if data_dir is not None:
        columns = {"original": catalogue_figures(data_dir, sizes), **columns}
        golden = Path(data_dir).parent / "golden"
        if golden.is_dir():
            others |= tagger_figures(data_dir, golden, arguments.spacy_model)
    if arguments.full:
        others |= full()
    print_table(columns, others)
    figures: dict[str, Any] = {**next(iter(columns.values())), **others}
    ratios: dict[str, float] = {}
    if data_dir is not None:
        figures |= {f"{key}_embedded": value for key, value in columns["embedded"].items()}
        ratios = {
            "steps_text_over_original": figures["steps_per_s_text"] / ORIGINAL["steps_per_s"],
            "steps_text_rich_over_original": figures["steps_per_s_text_rich"] / ORIGINAL["steps_per_s"],
            "resets_over_original": figures["resets_per_s"] / ORIGINAL["resets_per_s"],
            "original_start_over_ours": ORIGINAL["start_s"] / figures["start_cold_s"],
            "original_rss_over_ours": ORIGINAL["rss_mb"] / figures["rss_mb"],
        }
    figures |= {"catalogue": next(iter(columns)), "workers": sizes.workers, "repeats": sizes.repeats}
    print(json.dumps({"benchmark": "webshop", "commit": commit(), "ratios": ratios, "figures": figures}))


if __name__ == "__main__":
    main()

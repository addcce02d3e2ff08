"""Rollouts with kept KV caches against re-encoding the whole history each turn by `model.generate`.

Both arms play the same episodes with the same model: scripted observations of a web shop's length, so that the
text a page shows does not depend on what was sampled, and greedy actions of a fixed number of tokens, so that
both arms do the same work. The arms take turns, one turn of all episodes at a time; the tokens are compared.

    python benchmarks/rollout.py [--quick] [--seeds N]

Prints a table, then one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from commit import commit
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from trl_agent.generation import GenerationRequest, SamplingParams, TransformersBackend

PAD, VOCABULARY = 0, 8192
STOP = VOCABULARY  # no token has this id, so every action has ACTION_TOKENS tokens
ACTION_TOKENS = 12
OBSERVATION_TOKENS = (150, 250)


def build_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.05,
    )
    return LlamaForCausalLM(config).eval()


def observations(seed: int, episodes: int, turns: int) -> list[list[list[int]]]:
    rng = random.Random(seed)
    return [
        [
            [rng.randrange(1, VOCABULARY) for _ in range(rng.randint(*OBSERVATION_TOKENS))]
            for _ in range(turns)
        ]
        for _ in range(episodes)
    ]


class KeptCaches:
    """This package's back end."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.backend = TransformersBackend(model, pad_token_id=PAD, stop_token_ids=[STOP])
        self.sampling = SamplingParams(temperature=0.0, max_new_tokens=ACTION_TOKENS)

    def act(self, histories: list[list[int]], turn: int) -> list[list[int]]:
        requests = [GenerationRequest(e, ids, (e, turn)) for e, ids in enumerate(histories)]
        return [result.token_ids for result in self.backend.generate(requests, self.sampling)]


class Reencoding:
    """`model.generate` on the whole histories, padded on the left: its own cache lives for one turn."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model = model
        self.config = GenerationConfig(do_sample=False, max_new_tokens=ACTION_TOKENS, pad_token_id=PAD)

    def act(self, histories: list[list[int]], turn: int) -> list[list[int]]:
        width = max(map(len, histories))
        ids = torch.tensor([[PAD] * (width - len(row)) + row for row in histories])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in histories])
        with torch.no_grad():
            output: Any = self.model.generate(ids, attention_mask=mask, generation_config=self.config)
        return output[:, width:].tolist()


@dataclass
class Clock:
    """Wall-clock and processor seconds of one arm, one entry a turn."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @contextmanager
    def turn(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)


def play(model: LlamaForCausalLM, seed: int, episodes: int, turns: int) -> dict[str, Any]:
    """Time each arm on one set of episodes; count the actions on which they agree."""
    arms = {"kept": KeptCaches(model), "reencoded": Reencoding(model)}
    clocks = {name: Clock() for name in arms}
    histories: list[list[int]] = [[] for _ in range(episodes)]
    pages = observations(seed, episodes, turns)
    agreed = 0
    for turn in range(turns):
        for row, page in zip(histories, pages):
            row += page[turn]
        actions = {}
        for name in sorted(arms, reverse=turn % 2 == 1):  # neither arm always goes first
            with clocks[name].turn():
                actions[name] = arms[name].act(histories, turn)
        agreed += sum(a == b for a, b in zip(actions["kept"], actions["reencoded"]))
        for row, action in zip(histories, actions["reencoded"]):
            row += action
    return {
        **{name: sum(clock.wall) for name, clock in clocks.items()},
        "by_turn": {name: clock.wall for name, clock in clocks.items()},
        "cpu": {name: sum(clock.cpu) for name, clock in clocks.items()},
        "agreement": agreed / (episodes * turns),
        "context": max(map(len, histories)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer episodes and turns")
    parser.add_argument("--seeds", type=int, default=1, help="sets of episodes")
    arguments = parser.parse_args()
    episodes, turns = (4, 4) if arguments.quick else (8, 10)
    model = build_model()
    play(model, 10**6, 2, 2)  # warm-up
    runs = [play(model, seed, episodes, turns) for seed in range(arguments.seeds)]
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters / 1e6:.1f} M parameters, {episodes} episodes of {turns} turns")
    print(
        f"{'seed':>4} {'kept (s)':>10} {'re-encoded (s)':>15} {'speed-up':>9} {'same actions':>13} {'context':>8}"
    )
    for seed, run in enumerate(runs):
        ratio = run["reencoded"] / run["kept"]
        print(
            f"{seed:>4} {run['kept']:>10.2f} {run['reencoded']:>15.2f} {ratio:>8.2f}x "
            f"{run['agreement']:>13.1%} {run['context']:>8}"
        )
    speedups = [run["reencoded"] / run["kept"] for run in runs]
    figures = {
        "parameters": parameters,
        "episodes": episodes,
        "turns": turns,
        "seconds_kept": [run["kept"] for run in runs],
        "seconds_reencoded": [run["reencoded"] for run in runs],
        "seconds_by_turn": [run["by_turn"] for run in runs],
        "cpu_seconds": [run["cpu"] for run in runs],
        "speedups": speedups,
        "same_actions": [run["agreement"] for run in runs],
        "context_tokens": [run["context"] for run in runs],
        "threads": torch.get_num_threads(),
    }
    ratios = {"kv_reuse_speedup": statistics.median(speedups)}
    print(json.dumps({"benchmark": "rollout", "commit": commit(), "ratios": ratios, "figures": figures}))


if __name__ == "__main__":
    main()

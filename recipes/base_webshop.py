"""Make the small base model that `ppo_webshop.py` starts from, from the train products only.

    python recipes/base_webshop.py --output_dir runs/base

Two kinds of text are read, next-token loss on every token with observations weighted down:

- reading exercises: a result page, of one product first and of ten in the end, then for every product on it its id,
  its title or some of its attributes, and the answer `click[ID]`. Copying ids is learned there; a session has only
  one or two of them, far too few (8 M tokens of sessions alone did not teach it, nor did pages of ten at once);
- sessions of shoppers of mixed skill (`trl_agent_envs.webshop.demonstrator`), in a shop that has the train products
  only.

Product ids are renamed at random each time, so that they must be copied from the page and cannot be known by heart.
Dev goals give the loss that is logged; test products are never seen.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from tqdm import tqdm
from transformers import AutoTokenizer, HfArgumentParser, LlamaForCausalLM, PreTrainedTokenizerFast

from trl_agent.optim.muon import muon_with_adamw
from trl_agent.small_model import ASSISTANT, END, USER, build_model, build_tokenizer
from trl_agent_envs.webshop.demonstrator import CROWD, Demonstrator
from trl_agent_envs.webshop.exercises import (
    Session,
    group_by_kind,
    reading_exercise,
    rename_products,
    train_shop,
)
from trl_agent_envs.webshop.raw import RawCatalog
from trl_agent_envs.webshop.shop import Shop
from trl_agent_envs.webshop.synthetic import all_asins

ENV_ID = "trl_agent_envs:trl_agent/WebShop-v0"
PHRASES = (
    "WebShop [SEP] Instruction: [SEP]",
    "Instruction: [SEP]",
    "[SEP] Search",
    "[SEP] Back to Search [SEP] < Prev [SEP]",
    "[SEP] Back to Search [SEP] Page",
    "(Total results: 50) [SEP] Next > [SEP]",
    "(Total results: 50) [SEP] < Prev [SEP] Next > [SEP]",
    "[SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now",
    "[SEP] Price:",
    "[SEP]",
)
"""Fixed parts of the pages: one token each, which shortens an episode by a third."""

READERS = replace(CROWD, compares=0.6)
"""Whose sessions the base reads: they compare results more often than the crowd that is cloned later."""


@dataclass
class BaseArguments:
    """What to train, and for how long."""

    output_dir: str = field(default="runs/base_webshop", metadata={"help": "Folder for the model."})
    sessions: int = field(default=24_000, metadata={"help": "Shopping sessions to read."})
    exercises: float = field(
        default=0.6,
        metadata={"help": "Share of reading exercises at the beginning; it falls to half of that."},
    )
    products: int = field(
        default=1, metadata={"help": "Products on an exercise's page at the beginning, 1 to 10."}
    )
    init_from: str | None = field(
        default=None, metadata={"help": "Continue from this folder's model and tokenizer."}
    )
    minutes: float = field(
        default=40.0, metadata={"help": "Stop after this many minutes; the schedule follows it."}
    )
    batch_tokens: int = field(default=6_000, metadata={"help": "Tokens a step."})
    learning_rate: float = field(
        default=3e-3, metadata={"help": "AdamW's learning rate (embeddings, norms)."}
    )
    muon_learning_rate: float = field(
        default=2e-2, metadata={"help": "Muon's learning rate (hidden matrices)."}
    )
    observation_weight: float = field(
        default=0.2, metadata={"help": "Weight of an observation token in the loss."}
    )
    vocab_size: int = field(default=1792, metadata={"help": "Size of the tokenizer's vocabulary."})
    hidden_size: int = field(default=192, metadata={"help": "Width of the model."})
    num_layers: int = field(default=4, metadata={"help": "Depth of the model."})
    seed: int = field(default=0, metadata={"help": "Seed of everything."})

    def __post_init__(self) -> None:
        for name in ("sessions", "minutes", "batch_tokens"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


def collect_sessions(number: int, seed: int, **env_kwargs: Any) -> list[Session]:
    """Let shoppers of mixed skill shop."""
    env = gym.make(ENV_ID, disable_env_checker=True, **env_kwargs)
    shopper = Demonstrator(READERS, seed=seed)
    sessions = []
    for index in tqdm(range(number), desc="sessions", disable=None):
        observation, _ = env.reset(seed=seed * 1_000_003 + index)
        shopper.start_episode(index)
        session: Session = []
        done = False
        while not done:
            action = shopper.act(env.unwrapped)
            session.append((observation, action))
            observation, _, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
        sessions.append(session)
    return sessions


def encode(session: Session, tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[bool]]:
    """Token ids of a session and which of them the shopper wrote."""
    ids: list[int] = []
    written: list[bool] = []
    for observation, action in session:
        seen = tokenizer(f"{USER}{observation}{ASSISTANT}", add_special_tokens=False)["input_ids"]
        done = tokenizer(f"{action}{END}", add_special_tokens=False)["input_ids"]
        ids += seen + done
        written += [False] * len(seen) + [True] * len(done)
    return ids, written


def batches(
    rows: list[tuple[list[int], list[bool]]], batch_tokens: int, rng: random.Random
) -> list[list[int]]:
    """Row numbers in batches of about `batch_tokens` tokens, rows of like length together, batches shuffled."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]) + rng.random())
    groups: list[list[int]] = []
    current: list[int] = []
    for index in order:
        padded = -(-len(rows[index][0]) // 64) * 64
        if current and padded * (len(current) + 1) > batch_tokens:
            groups.append(current)
            current = []
        current.append(index)
    groups.append(current)
    rng.shuffle(groups)
    return groups


def weighted_loss(
    model: torch.nn.Module,
    rows: list[tuple[list[int], list[bool]]],
    observation_weight: float,
    id_tokens: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return next-token losses in nats per token: weighted, on the shopper's own tokens, on its `id_tokens`."""
    # few different shapes: bfloat16 kernels are built, and kept, for each one
    length = -(-max(len(ids) for ids, _ in rows) // 64) * 64
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    weight = torch.zeros(len(rows), length)
    for row, (tokens, written) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weight[row, : len(tokens)] = torch.where(torch.tensor(written), 1.0, observation_weight)
    # ids on a page are random: predicting them teaches nothing and makes their embeddings all alike
    weight[torch.isin(ids, id_tokens) & (weight < 1)] = 0.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=ids).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    weight = weight[:, 1:].flatten()
    own = weight == 1.0
    named = own & torch.isin(ids[:, 1:].flatten(), id_tokens)
    weight[named] = 3.0  # the hardest token to learn, and the one that decides a purchase
    return (losses * weight).sum() / weight.sum(), losses[own].mean(), losses[named].mean()


def train(
    args: BaseArguments,
    tokenizer: PreTrainedTokenizerFast,
    shop: RawCatalog,
    sessions: list[Session],
    dev: list[Session],
) -> torch.nn.Module:
    """Train for `args.minutes`; the learning rates rise over 2 % and fall linearly to a tenth."""
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    if args.init_from is None:
        model = build_model(tokenizer, args.hidden_size, args.num_layers)
    else:
        model = LlamaForCausalLM.from_pretrained(args.init_from, dtype=torch.float32)
    optimizer = muon_with_adamw(
        model, lr=args.learning_rate, muon_lr=args.muon_learning_rate, weight_decay=0.01
    )
    peak = [group["lr"] for group in optimizer.param_groups]
    dev_rows = [encode(session, tokenizer) for session in dev]
    id_tokens = torch.tensor(tokenizer.convert_tokens_to_ids([f"▁{asin.lower()}" for asin in all_asins()]))
    share_a_direction(model, id_tokens)
    begin, step, tokens, most, id_loss = time.monotonic(), 0, 0, args.products, 4.0
    log = (Path(args.output_dir) / "metrics.jsonl").open("w", encoding="utf-8")
    bar = tqdm(total=100, desc="train", disable=None)
    products = Shop.load(shop).catalog.products
    kinds = list(group_by_kind(products).values())
    while True:
        share = (time.monotonic() - begin) / (60 * args.minutes)
        exercises = round(500 * args.exercises * (1 - 0.5 * share))
        texts = [reading_exercise(kinds, most, rng) for _ in range(exercises)] + rng.choices(
            sessions, k=500 - exercises
        )
        rows = [encode(rename_products(session, rng), tokenizer) for session in texts]
        for group in batches(rows, args.batch_tokens, rng):
            share = (time.monotonic() - begin) / (60 * args.minutes)
            if share >= 1:
                log.close()
                return model
            for lr, param_group in zip(peak, optimizer.param_groups):
                param_group["lr"] = lr * min(1.0, (step + 1) / 50) * (1 - 0.9 * share)
            loss, own, named = weighted_loss(
                model, [rows[i] for i in group], args.observation_weight, id_tokens
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if all(i < exercises for i in group):
                id_loss += 0.05 * (named.item() - id_loss)
            # longer pages once the pages so far are read well, and with time in any case
            most = max(most, min(10, 1 + int(12 * share)))
            if id_loss < 0.5 and most < 10:
                most, id_loss = min(10, most + 3), 1.0
            tokens += sum(len(rows[i][0]) for i in group)
            if step % 25 == 0:
                record = {
                    "step": step,
                    "tokens": tokens,
                    "loss": loss.item(),
                    "own": own.item(),
                    "ids": id_loss,
                    "most": most,
                    "minutes": share * args.minutes,
                }
                if step % 200 == 0:
                    with torch.no_grad():
                        dev_losses = weighted_loss(model, dev_rows, args.observation_weight, id_tokens)
                        record.update(dev_own=dev_losses[1].item(), dev_ids=dev_losses[2].item())
                log.write(json.dumps(record) + "\n")
                log.flush()
                bar.n = round(100 * share)
                bar.set_postfix(loss=f"{own.item():.3f}", tokens=f"{tokens / 1e6:.1f}M")
            if step % 500 == 0:
                save(model, tokenizer, Path(args.output_dir) / "latest")


@torch.no_grad()
def share_a_direction(model: LlamaForCausalLM, tokens: torch.Tensor) -> None:
    """Give the embeddings of all ids one direction in common, as large as what tells them apart.

    Attention can then look for "an id"; between unrelated vectors it cannot, and copying is not learned.
    """
    weight = model.get_input_embeddings().weight
    common = torch.nn.functional.normalize(torch.randn(weight.shape[1]), dim=0)
    weight[tokens] += common * weight[tokens].norm(dim=-1).mean()


def save(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the weights in bfloat16 (half the size; the model is trained in bfloat16 autocast anyway)."""
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


CARD = """---
license: apache-2.0
---
# Small base model for the embedded WebShop

A Llama of {millions:.1f} M parameters with a tokenizer of its own, made by `recipes/base_webshop.py` with

{arguments}

It has read reading exercises and the sessions of scripted shoppers of mixed skill, in a shop that holds the train
products of the embedded catalogue only. Product ids were renamed at random all the time, so the ids of dev and test
products were seen as mere names, never beside their products. Last log line:

    {last}

It is a starting point for cloning and PPO on this shop on two CPU cores and of no other use.
"""


def write_card(args: BaseArguments, folder: Path) -> None:
    """Say beside the weights how they were made."""
    lines = (Path(args.output_dir) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    last = lines[-1] if lines else "(none: it ended before the first log)"
    size = sum(p.numel() for p in LlamaForCausalLM.from_pretrained(folder).parameters())
    arguments = "\n".join(f"    --{name} {value}" for name, value in vars(args).items() if value is not None)
    (folder / "README.md").write_text(CARD.format(millions=size / 1e6, arguments=arguments, last=last))


def main() -> None:
    (args,) = HfArgumentParser(BaseArguments).parse_args_into_dataclasses()
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    shop = train_shop()
    sessions = collect_sessions(args.sessions, args.seed, data_dir=shop, split="all")
    dev = collect_sessions(64, args.seed + 1, split="dev")
    texts = (part for session in sessions[:4000] for step in session for part in step)
    if args.init_from is None:
        tokenizer = build_tokenizer(texts, args.vocab_size, PHRASES, [asin.lower() for asin in all_asins()])
    else:
        tokenizer = AutoTokenizer.from_pretrained(args.init_from)
    model = train(args, tokenizer, shop, sessions, dev)
    save(model, tokenizer, Path(args.output_dir) / "final")
    write_card(args, Path(args.output_dir) / "final")
    print(f"written to {args.output_dir}/final", file=sys.stderr)


if __name__ == "__main__":
    main()

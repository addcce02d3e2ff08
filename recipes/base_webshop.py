"""Make the small base model that `ppo_webshop.py` starts from, from the train products only.

    python recipes/base_webshop.py --output_dir runs/base

The model starts with a copying circuit in its attention (`trl_agent/copying_start.py`), and a product id is two tokens,
a head and a tail. Two kinds of text are read, and only what the shopper writes counts in the loss:

- reading exercises: a result page of one to ten products, a wish that fits one of them, and `click[ID]`;
- sessions of shoppers of mixed skill (`trl_agent_envs.webshop.demonstrator`), in a shop that has the train products
  only; of some only the first turn, from which queries are learned at little cost, and of some only what happens on
  the product's own page, which teaches options.

Product ids are renamed at random each time, so that they must be copied from the page and cannot be known by heart;
for the same reason their embeddings stay as they began.
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

from trl_agent.copying_start import HIDDEN_SIZE, ROPE_THETA, Roles, start_as_copier
from trl_agent.demonstrations import Reset, play_scripted
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

READERS = replace(CROWD, full_query=0.3, names_options=0.35, compares=0.5)
"""Whose sessions the base reads: they write longer queries and compare more often than the crowd that is cloned later,
so that the base can do all of it, each now and then."""


@dataclass
class BaseArguments:
    """What to train, and for how long."""

    output_dir: str = field(default="runs/base_webshop", metadata={"help": "Folder for the model."})
    sessions: int = field(default=24_000, metadata={"help": "Shopping sessions to read."})
    exercises: float = field(
        default=0.9,
        metadata={"help": "Share of reading exercises at the beginning; it falls to half of that."},
    )
    products: int = field(
        default=4, metadata={"help": "Products on an exercise's page at the beginning, 1 to 10."}
    )
    init_from: str | None = field(
        default=None, metadata={"help": "Continue from this folder's model and tokenizer."}
    )
    minutes: float = field(
        default=20.0, metadata={"help": "Stop after this many minutes; the schedule follows it."}
    )
    batch_tokens: int = field(default=4_000, metadata={"help": "Tokens a step."})
    learning_rate: float = field(
        default=1e-3, metadata={"help": "AdamW's learning rate (embeddings, norms)."}
    )
    muon_learning_rate: float = field(
        default=2e-3,
        metadata={"help": "Muon's learning rate (hidden matrices). Above 7e-3 the copying start is lost."},
    )
    vocab_size: int = field(default=1792, metadata={"help": "Size of the tokenizer's vocabulary."})
    num_layers: int = field(default=4, metadata={"help": "Depth of the model."})
    seed: int = field(default=0, metadata={"help": "Seed of everything."})

    def __post_init__(self) -> None:
        for name in ("sessions", "minutes", "batch_tokens"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


def collect_sessions(number: int, seed: int, **env_kwargs: Any) -> list[Session]:
    """Let shoppers of mixed skill shop."""
    env = gym.make(ENV_ID, disable_env_checker=True, **env_kwargs)
    resets: list[Reset] = [(seed * 1_000_003 + index, None) for index in range(number)]
    episodes = play_scripted(env, Demonstrator(READERS, seed=seed), resets, progress="sessions")
    return [[(step.prompt, step.response) for step in episode] for episode in episodes]


def purchase(session: Session) -> Session:
    """The session from the first product's own page on; all of it, if no product was opened."""
    first = next((i for i, (observation, _) in enumerate(session) if "Buy Now" in observation), 0)
    return session[first:]


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


def own_loss(
    model: torch.nn.Module, rows: list[tuple[list[int], list[bool]]], id_tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Losses in nats per token the shopper wrote: with ids counting three times, plain, and on ids alone."""
    # few different shapes: bfloat16 kernels are built, and kept, for each one
    length = -(-max(len(ids) for ids, _ in rows) // 64) * 64
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    own = torch.zeros(len(rows), length, dtype=torch.bool)
    for row, (tokens, written) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        own[row, : len(tokens)] = torch.tensor(written)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
        logits = model.lm_head(hidden[own[:, 1:]])
    target = ids[:, 1:][own[:, 1:]]
    losses = torch.nn.functional.cross_entropy(logits.float(), target, reduction="none")
    named = torch.isin(target, id_tokens)
    weight = 1.0 + 2.0 * named  # the hardest tokens to learn, and the ones that decide a purchase
    return (losses * weight).sum() / weight.sum(), losses.mean(), losses[named].mean()


def name_parts() -> tuple[list[str], list[str]]:
    """Beginnings and ends of the catalogue's product ids."""
    asins = [asin.lower() for asin in all_asins()]
    return sorted({asin[:6] for asin in asins}), sorted({asin[6:] for asin in asins})


def roles(tokenizer: PreTrainedTokenizerFast) -> Roles:
    """What the tokens of a shop's pages mean to the copying circuit."""

    def ids(tokens: list[str]) -> list[int]:
        return [int(i) for i in tokenizer.convert_tokens_to_ids(tokens)]

    heads, tails = name_parts()
    return Roles(
        name_heads=ids([f"▁{head}" for head in heads]),
        name_tails=ids(tails),
        wish=ids([phrase for phrase in PHRASES if "Instruction" in phrase]),
        parts=ids([USER, ASSISTANT, *(phrase for phrase in PHRASES if "Back to Search" in phrase)]),
        take=ids(["▁click"])[0],
        ask=ids(["▁search"])[0],
    )


def train(
    args: BaseArguments,
    tokenizer: PreTrainedTokenizerFast,
    shop: RawCatalog,
    sessions: list[Session],
    dev: list[Session],
) -> torch.nn.Module:
    """Train for `args.minutes`; the learning rates rise over 50 steps and fall linearly to a tenth."""
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    meaning = roles(tokenizer)
    id_tokens = torch.tensor([*meaning.name_heads, *meaning.name_tails])
    if args.init_from is None:
        model = build_model(tokenizer, HIDDEN_SIZE, args.num_layers, rope_theta=ROPE_THETA)
        start_as_copier(model, meaning)
    else:
        model = LlamaForCausalLM.from_pretrained(args.init_from, dtype=torch.float32)
    optimizer = muon_with_adamw(
        model, lr=args.learning_rate, muon_lr=args.muon_learning_rate, weight_decay=0.01
    )
    peak = [group["lr"] for group in optimizer.param_groups]
    dev_rows = [encode(session, tokenizer) for session in dev]
    embeddings = model.get_input_embeddings().weight
    fixed = embeddings[id_tokens].detach().clone()
    kinds = list(group_by_kind(Shop.load(shop).catalog.products).values())
    begin, step, tokens, id_loss = time.monotonic(), 0, 0, 4.0
    log = (Path(args.output_dir) / "metrics.jsonl").open("w", encoding="utf-8")
    bar = tqdm(total=100, desc="train", disable=None)
    while True:
        share = (time.monotonic() - begin) / (60 * args.minutes)
        most = min(10, args.products + round(2 * share * (10 - args.products)))  # ten at half time
        exercises = round(500 * args.exercises * (1 - 0.5 * share))
        texts = [reading_exercise(kinds, most, rng) for _ in range(exercises)]
        texts += rng.choices(sessions, k=500 - exercises)
        texts += [session[:1] for session in rng.choices(sessions, k=300)]
        texts += [purchase(session) for session in rng.choices(sessions, k=300)]
        rows = [encode(rename_products(session, rng), tokenizer) for session in texts]
        for group in batches(rows, args.batch_tokens, rng):
            share = (time.monotonic() - begin) / (60 * args.minutes)
            if share >= 1:
                log.close()
                return model
            for lr, param_group in zip(peak, optimizer.param_groups):
                param_group["lr"] = lr * min(1.0, (step + 1) / 50) * (1 - 0.9 * share)
            loss, own, named = own_loss(model, [rows[i] for i in group], id_tokens)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                embeddings[id_tokens] = fixed
            step += 1
            tokens += sum(len(rows[i][0]) for i in group)
            if named.isfinite():  # some batches have no id
                id_loss += 0.02 * (named.item() - id_loss)
            if step % 25 == 0:
                record = {
                    "step": step,
                    "tokens": tokens,
                    "own": own.item(),
                    "ids": id_loss,
                    "most": most,
                    "minutes": share * args.minutes,
                }
                if step % 200 == 0:
                    with torch.no_grad():
                        dev_losses = own_loss(model, dev_rows, id_tokens)
                    record.update(dev_own=dev_losses[1].item(), dev_ids=dev_losses[2].item())
                log.write(json.dumps(record) + "\n")
                log.flush()
                bar.n = round(100 * share)
                bar.set_postfix(own=f"{own.item():.3f}", ids=f"{id_loss:.3f}", tokens=f"{tokens / 1e6:.1f}M")
            if step % 500 == 0:
                save(model, tokenizer, Path(args.output_dir) / "latest")


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

Its attention began with a copying circuit set by hand (`trl_agent/copying_start.py`), and product ids are two tokens.
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
    arguments = "\n".join(
        f"    --{name} {value}"
        for name, value in vars(args).items()
        if value is not None and name != "output_dir"
    )
    (folder / "README.md").write_text(CARD.format(millions=size / 1e6, arguments=arguments, last=last))


def main() -> None:
    (args,) = HfArgumentParser(BaseArguments).parse_args_into_dataclasses()
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    shop = train_shop()
    sessions = collect_sessions(args.sessions, args.seed, data_dir=shop, split="all")
    dev = collect_sessions(64, args.seed + 1, split="dev")
    texts = (part for session in sessions[:4000] for step in session for part in step)
    if args.init_from is None:
        tokenizer = build_tokenizer(texts, args.vocab_size, PHRASES, *name_parts())
    else:
        tokenizer = AutoTokenizer.from_pretrained(args.init_from)
    model = train(args, tokenizer, shop, sessions, dev)
    save(model, tokenizer, Path(args.output_dir) / "final")
    write_card(args, Path(args.output_dir) / "final")
    print(f"written to {args.output_dir}/final", file=sys.stderr)


if __name__ == "__main__":
    main()

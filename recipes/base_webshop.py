"""Make the small base model that `ppo_webshop.py` starts from, from the train products only.

    python recipes/base_webshop.py --output_dir runs/base

Sessions of shoppers of mixed skill (see `trl_agent_envs.webshop.demonstrator`) on goals of the train split are
read as plain text: next-token loss on every token, observations weighted down. Product ids are renamed at random in
each session, so that the model must copy them from the page and cannot learn them by heart. Dev goals give the loss
by which the checkpoint is chosen; test products are never seen.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium as gym
import torch
from tqdm import tqdm
from transformers import HfArgumentParser, PreTrainedTokenizerFast

from trl_agent.optim.muon import muon_with_adamw
from trl_agent.small_model import ASSISTANT, END, USER, build_model, build_tokenizer
from trl_agent_envs.webshop.demonstrator import Demonstrator
from trl_agent_envs.webshop.synthetic import random_asin

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

Session = list[tuple[str, str]]
"""(observation, action) pairs of one episode."""


@dataclass
class BaseArguments:
    """What to train, and for how long."""

    output_dir: str = field(default="runs/base_webshop", metadata={"help": "Folder for the model."})
    sessions: int = field(default=24_000, metadata={"help": "Shopping sessions to read."})
    minutes: float = field(
        default=40.0, metadata={"help": "Stop after this many minutes; the schedule follows it."}
    )
    batch_tokens: int = field(default=12_000, metadata={"help": "Tokens a step."})
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


def collect_sessions(split: str, number: int, seed: int) -> list[Session]:
    """Let shoppers of mixed skill shop on goals of `split`."""
    env = gym.make(ENV_ID, split=split, disable_env_checker=True)
    shopper = Demonstrator(seed=seed)
    sessions = []
    for index in tqdm(range(number), desc=f"{split} sessions", disable=None):
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


def rename_products(session: Session, rng: random.Random) -> Session:
    """Give every product of the session another id, the same one wherever it stands."""
    text = "\x00".join(part for step in session for part in step)
    names = {asin: random_asin(rng) for asin in sorted(set(re.findall(r"\bB0[A-Z]{8}\b", text.upper())))}
    for old, new in names.items():
        text = text.replace(old, new).replace(old.lower(), new.lower())
    parts = text.split("\x00")
    return list(zip(parts[::2], parts[1::2]))


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
        if current and len(rows[index][0]) * (len(current) + 1) > batch_tokens:
            groups.append(current)
            current = []
        current.append(index)
    groups.append(current)
    rng.shuffle(groups)
    return groups


def weighted_loss(
    model: torch.nn.Module, rows: list[tuple[list[int], list[bool]]], observation_weight: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (weighted next-token loss, loss on the shopper's own tokens), in nats per token."""
    length = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    weight = torch.zeros(len(rows), length)
    for row, (tokens, written) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weight[row, : len(tokens)] = torch.where(torch.tensor(written), 1.0, observation_weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=ids).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    weight = weight[:, 1:].flatten()
    own = weight == 1.0
    return (losses * weight).sum() / weight.sum(), losses[own].mean()


def train(
    args: BaseArguments, tokenizer: PreTrainedTokenizerFast, sessions: list[Session], dev: list[Session]
) -> torch.nn.Module:
    """Train for `args.minutes`; the learning rates rise over 2 % and fall linearly to a tenth."""
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    model = build_model(tokenizer, args.hidden_size, args.num_layers)
    optimizer = muon_with_adamw(
        model, lr=args.learning_rate, muon_lr=args.muon_learning_rate, weight_decay=0.01
    )
    peak = [group["lr"] for group in optimizer.param_groups]
    dev_rows = [encode(session, tokenizer) for session in dev]
    begin, step, tokens = time.monotonic(), 0, 0
    log = (Path(args.output_dir) / "metrics.jsonl").open("w")
    bar = tqdm(total=100, desc="train", disable=None)
    while True:
        rows = [
            encode(rename_products(session, rng), tokenizer)
            for session in rng.sample(sessions, min(2000, len(sessions)))
        ]
        for group in batches(rows, args.batch_tokens, rng):
            share = (time.monotonic() - begin) / (60 * args.minutes)
            if share >= 1:
                log.close()
                return model
            for lr, param_group in zip(peak, optimizer.param_groups):
                param_group["lr"] = lr * min(1.0, (step + 1) / 50) * (1 - 0.9 * share)
            loss, own = weighted_loss(model, [rows[i] for i in group], args.observation_weight)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            tokens += sum(len(rows[i][0]) for i in group)
            if step % 25 == 0:
                record = {
                    "step": step,
                    "tokens": tokens,
                    "loss": loss.item(),
                    "own": own.item(),
                    "minutes": share * args.minutes,
                }
                if step % 200 == 0:
                    with torch.no_grad():
                        record["dev_own"] = weighted_loss(model, dev_rows, args.observation_weight)[1].item()
                log.write(json.dumps(record) + "\n")
                log.flush()
                bar.n = round(100 * share)
                bar.set_postfix(loss=f"{own.item():.3f}", tokens=f"{tokens / 1e6:.1f}M")
            if step % 500 == 0:
                save(model, tokenizer, Path(args.output_dir) / "latest")


def save(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the weights in bfloat16 (half the size; the model is trained in bfloat16 autocast anyway)."""
    import copy

    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    (args,) = HfArgumentParser(BaseArguments).parse_args_into_dataclasses()
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    sessions = collect_sessions("train", args.sessions, args.seed)
    dev = collect_sessions("dev", 64, args.seed + 1)
    texts = (part for session in sessions[:4000] for step in session for part in step)
    rng = random.Random(0)
    ids = (f"click[{random_asin(rng)}]" for _ in range(20_000))
    tokenizer = build_tokenizer([*texts, *ids], args.vocab_size, PHRASES)
    model = train(args, tokenizer, sessions, dev)
    save(model, tokenizer, Path(args.output_dir) / "final")
    print(f"written to {args.output_dir}/final", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Our PPO update against TRL 1.12's, on the same tokens: seconds and peak memory.

The update is what follows a rollout: forward, losses, backward and optimizer steps over the epochs and
micro-batches. Both arms get the same model (a 4-layer Llama of width 256 with 49,152 tokens, tied
embeddings), the same episodes (nine tokens in ten are observations, ragged lengths), the same micro-batches
of two rows, one epoch and one AdamW step, in fp32 on the CPU.

- "trl" is TRL's real `PPOTrainer.train`. Only its generation is replaced, by a function that hands it the
  given tokens; its own loop, forward and losses run. PPOTrainer knows one query and one response, so the
  query is the first token of each episode and the response all the rest. Its value model is a second trunk:
  it has no other.
- "ours" is `ActorCritic` with the default critic (a head on the policy's trunk), the policy and value
  losses and the entropy bonus of `trl_agent.losses`.
- "ours_separate" is the same with a separate critic of the same size as TRL's.

Each arm runs in a process of its own on one thread (so that busy neighbours disturb it less), the arms
alternate, medians are reported. A process does two updates: the first warms up and creates the optimizer's
state, the second is measured, under the memory profiler in the first round and by the clock in the others
(--quick has one round, with a third update for the profiler). Peak memory is what PyTorch's profiler sees
allocated above the level at the start of the update: weights, optimizer state and the rollout's tensors are
below it; gradients, activations and temporaries count. The time ratio is of `cpu_seconds`, the process's own:
on one thread that is the wall clock of an idle machine, and a busy one distorts it far less. Wall-clock
seconds are in the figures.

    python benchmarks/ppo_update.py [--quick] [--seeds N]

The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

from commit import commit

ARMS = ("trl", "ours", "ours_separate")
VOCAB_SIZE, HIDDEN_SIZE, NUM_LAYERS = 49_152, 256, 4
OBSERVATION_TOKENS, ACTION_TOKENS = 72, 8  # a turn: nine tokens in ten are observations
MICRO_BATCH, NUM_EPOCHS = 2, 1
LEARNING_RATE, CLIPRANGE, VF_COEF, ENTROPY_COEF = 3e-6, 0.2, 0.1, 0.01
PAD, EOS = 0, 1


@dataclass
class Measurement:
    """What the updates of one process gave. Bytes are above the level at the update's start.

    plan: what is done to each update in turn.
    """

    plan: list[Literal["warm up", "time", "profile"]]
    figures: dict[str, float] = field(default_factory=dict)
    done: int = 0

    @contextmanager
    def update(self) -> Iterator[None]:
        """Run one update as the plan says."""
        import torch

        what = self.plan[self.done]
        self.done += 1
        cpu = [torch.profiler.ProfilerActivity.CPU]
        if what == "profile":
            with torch.profiler.profile(activities=cpu, profile_memory=True) as profile:
                yield
            self.figures["peak_mib"] = _peak(profile) / 2**20
            return
        start, cpu_start = time.perf_counter(), time.process_time()
        yield
        if what == "time":
            self.figures["seconds"] = time.perf_counter() - start
            self.figures["cpu_seconds"] = time.process_time() - cpu_start


def _peak(profile: Any) -> int:
    """Highest running sum of the allocator's events, in bytes."""
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    level = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        level += event.nbytes()
        peak = max(peak, level)
    return peak


def make_episodes(quick: bool, seed: int) -> list[Any]:
    """Random episodes of 384 to 768 tokens (--quick: 256 to 512)."""
    from trl_agent.trajectory import Segment, Trajectory, Turn

    rng = random.Random(seed)
    longest = 512 if quick else 768
    trajectories = []
    for episode in range(4):
        trajectory = Trajectory(terminated=True, episode=episode, segments=[Segment()])
        segment = trajectory.segments[0]
        target = longest if episode == 0 else rng.randrange(longest // 2, longest)
        while len(segment) + OBSERVATION_TOKENS + ACTION_TOKENS <= target:
            segment.append_context([rng.randrange(2, VOCAB_SIZE) for _ in range(OBSERVATION_TOKENS)])
            ids = [rng.randrange(2, VOCAB_SIZE) for _ in range(ACTION_TOKENS)]
            start, end = segment.append_action(ids, [0.0] * ACTION_TOKENS)
            trajectory.turns.append(Turn("", "", 0, start, end))
        trajectories.append(trajectory)
    return trajectories


def model_config() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=4 * HIDDEN_SIZE,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=EOS,
        tie_word_embeddings=True,
    )


def run_ours(trajectories: list[Any], critic: Any, measurement: Measurement) -> None:
    """Our update, with old log-probabilities and values as our own rollout would have them."""
    import torch
    from transformers import LlamaForCausalLM

    from trl_agent.advantages import discounts, gae
    from trl_agent.batch import EpisodeTensors, collate
    from trl_agent.losses import policy_loss, value_loss
    from trl_agent.modeling import ActorCritic
    from trl_agent.rewards import token_rewards

    model = ActorCritic(LlamaForCausalLM(model_config()), critic=critic)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def score(batch: Any) -> Any:
        return model(
            batch.input_ids, batch.attention_mask, batch.position_ids, batch.action_rows, batch.action_cols
        )

    episodes = []
    for trajectory in trajectories:
        episode = EpisodeTensors.from_trajectory(trajectory)
        ends, num_tokens = trajectory.turn_ends, trajectory.num_action_tokens
        with torch.no_grad():
            out = score(collate([episode], PAD))
        rewards = token_rewards([random.random() for _ in ends], ends, num_tokens)
        advantages, returns = gae(rewards, out.values, 0.0, *discounts(ends, num_tokens, 1.0, 0.95, "turn"))
        episodes.append(
            replace(
                episode,
                logprobs=out.logprobs,
                values=out.values,
                rewards=rewards,
                advantages=advantages,
                returns=returns,
            )
        )

    def update() -> None:
        for _ in range(NUM_EPOCHS):
            order = random.sample(range(len(episodes)), len(episodes))
            total = sum(episode.num_action_tokens for episode in episodes)
            for start in range(0, len(order), MICRO_BATCH):
                batch = collate([episodes[i] for i in order[start : start + MICRO_BATCH]], PAD)
                out = score(batch)
                policy = policy_loss(out.logprobs, batch.logprobs, batch.advantages, CLIPRANGE, CLIPRANGE)
                value = value_loss(out.values, batch.values, batch.returns, CLIPRANGE)
                loss = (policy.per_token + VF_COEF * value - ENTROPY_COEF * out.entropy).sum() / total
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    for _ in range(len(measurement.plan)):
        with measurement.update():
            update()


def run_trl(trajectories: list[Any], measurement: Measurement, output_dir: str) -> None:
    """TRL's `PPOTrainer.train` on the given tokens; only generation is replaced."""
    import torch
    from datasets import Dataset
    from transformers import LlamaForCausalLM, LlamaForSequenceClassification
    from trl.experimental.ppo import PPOConfig, PPOTrainer
    from trl.experimental.ppo import ppo_trainer as module

    rows = [trajectory.segments[0].input_ids for trajectory in trajectories]
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])

    def batch_generation(*_: Any) -> tuple[Any, Any]:
        # Uniform logits of stride 0: what TRL takes the old log-probabilities from, without their memory.
        return tokens, torch.zeros(1).expand(len(rows), longest - 1, VOCAB_SIZE)

    config = model_config()
    config.num_labels = 1
    args = PPOConfig(
        output_dir=output_dir,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=len(rows) // MICRO_BATCH,
        num_mini_batches=1,
        num_ppo_epochs=NUM_EPOCHS,
        total_episodes=len(rows) * len(measurement.plan),
        local_rollout_forward_batch_size=1,
        num_sample_generations=0,
        response_length=longest - 1,
        temperature=1.0,
        learning_rate=LEARNING_RATE,
        cliprange=CLIPRANGE,
        cliprange_value=CLIPRANGE,
        vf_coef=VF_COEF,
    )
    trainer = PPOTrainer(
        args=args,
        processing_class=_tokenizer(),
        model=LlamaForCausalLM(config),
        ref_model=None,
        reward_model=LlamaForSequenceClassification(config),
        value_model=LlamaForSequenceClassification(config),
        train_dataset=Dataset.from_dict({"input_ids": [row[:1] for row in rows]}),
    )
    with (
        mock.patch.object(module, "batch_generation", batch_generation),
        _update_of(trainer, module, measurement),
    ):
        trainer.train()


@contextmanager
def _update_of(trainer: Any, module: Any, measurement: Measurement) -> Iterator[None]:
    """Measure the update inside `PPOTrainer.train`: from its first shuffle to its first metric."""
    shuffle: Callable[[int], Any] = module.np.random.permutation
    gather: Callable[[Any], Any] = trainer.accelerator.gather_for_metrics
    running: list[Any] = []

    def permutation(count: int) -> Any:
        if not running:
            running.append(measurement.update())
            running[0].__enter__()
        return shuffle(count)

    def gather_for_metrics(value: Any) -> Any:
        if running:
            running.pop().__exit__(None, None, None)
        return gather(value)

    with (
        mock.patch.object(module.np.random, "permutation", permutation),
        mock.patch.object(trainer.accelerator, "gather_for_metrics", gather_for_metrics),
    ):
        yield


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": PAD, "<eos>": EOS, "word": 2}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="word"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def run_arm(arm: str, quick: bool, seed: int, plan: list[Any], result: Path) -> None:
    """Run one arm in this process and write its figures to `result`."""
    import torch

    torch.manual_seed(seed)
    random.seed(seed)
    trajectories = make_episodes(quick, seed)
    measurement = Measurement(plan)
    if arm == "trl":
        run_trl(trajectories, measurement, str(result.parent))
    else:
        run_ours(trajectories, "separate" if arm == "ours_separate" else "shared", measurement)
    result.write_text(json.dumps(measurement.figures))


def _subprocess(arm: str, quick: bool, seed: int, plan: Sequence[str], folder: str) -> dict[str, float]:
    result = Path(folder) / f"{arm}.json"
    command = [
        sys.executable,
        __file__,
        "--arm",
        arm,
        "--result",
        str(result),
        "--seed",
        str(seed),
        "--plan",
        *plan,
    ]
    environment = os.environ | {
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        command + ["--quick"] * quick, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"arm {arm} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    figures: dict[str, float] = json.loads(result.read_text())
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="shorter episodes, one round")
    parser.add_argument(
        "--seeds", type=int, default=2, help="timed rounds, each with its own episodes and weights"
    )
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--plan", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        run_arm(options.arm, options.quick, options.seed, options.plan, options.result)
        return
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1, got {options.seeds}")
    rounds: list[tuple[str, ...]]
    if options.quick:
        rounds = [("warm up", "time", "profile")]
    else:
        rounds = [("warm up", "profile"), *[("warm up", "time")] * options.seeds]
    runs: dict[str, dict[str, list[float]]] = {arm: defaultdict(list) for arm in ARMS}
    for seed, plan in enumerate(rounds):
        for arm in ARMS:
            with tempfile.TemporaryDirectory() as folder:
                for key, value in _subprocess(arm, options.quick, seed, plan, folder).items():
                    runs[arm][key].append(value)
    report(runs)


def report(runs: dict[str, dict[str, list[float]]]) -> None:
    """Print the table and the JSON line."""
    median = {
        arm: {key: statistics.median(values) for key, values in results.items()}
        for arm, results in runs.items()
    }
    print(f"{'arm':15}{'CPU seconds':>13}{'peak MiB':>10}{'times faster':>14}{'part of memory':>16}")
    figures: dict[str, float] = {}
    ratios: dict[str, dict[str, float]] = {}
    trl = median["trl"]
    for arm, values in median.items():
        time_ratio = trl["cpu_seconds"] / values["cpu_seconds"]
        memory_ratio = values["peak_mib"] / trl["peak_mib"]
        ratios[arm] = {"time_vs_trl": round(time_ratio, 3), "peak_memory_vs_trl": round(memory_ratio, 3)}
        print(
            f"{arm:15}{values['cpu_seconds']:13.2f}{values['peak_mib']:10.0f}{time_ratio:14.2f}{memory_ratio:16.2f}"
        )
        for key, value in values.items():
            figures[f"{arm}_{key}"] = round(value, 3)
        figures[f"{arm}_wall_time_vs_trl"] = round(trl["seconds"] / values["seconds"], 3)
    for key, value in ratios["ours_separate"].items():
        figures[f"ours_separate_{key}"] = value
    print(
        json.dumps(
            {"benchmark": "ppo_update", "commit": commit()[:7], "ratios": ratios["ours"], "figures": figures}
        )
    )


if __name__ == "__main__":
    main()

"""Clone demonstrations: TRL's SFTTrainer on the action tokens only, the best epoch on dev goals kept.

    accelerate launch recipes/sft_webshop.py
    accelerate launch recipes/sft_webshop.py --demonstrations runs/mine/demonstrations.jsonl --min_score 1

Without an argument a scripted crowd shops in the embedded shop and the small packaged model learns from its
successful episodes. Defaults are in sft_webshop.yaml beside this file (or --config FILE); flags override them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from accelerate import PartialState
from trl import ModelConfig, SFTConfig

from trl_agent.bc_arms import clone
from trl_agent.checkpoint import FINAL, claim_output_dir, write_atomically
from trl_agent.experiment import Experiment, ExperimentArguments, parse_recipe
from trl_agent.play import PlayOptions
from trl_agent.report import table, write_report


@dataclass
class CloneArguments:
    """Which demonstrations to clone, and how episodes are played to score the clone."""

    min_score: float = field(
        default=0.0, metadata={"help": "Clone episodes with at least this score, in [0, 1]."}
    )
    num_envs: int = field(default=64, metadata={"help": "Episodes that run at once."})
    max_turns: int | None = field(
        default=None, metadata={"help": "Turns per episode; None = the environment's."}
    )
    max_new_tokens: int = field(default=64, metadata={"help": "Most tokens an action may have."})
    context_policy: Literal["full", "window"] = field(
        default="full", metadata={"help": "'window' leaves out old observations; see the trainer's."}
    )
    context_window: int | None = field(default=None, metadata={"help": "Observations kept whole."})
    action_format: Literal["plain", "tagged"] = field(
        default="plain", metadata={"help": "'tagged' clones and plays <action>...</action>."}
    )
    temperature: float = field(default=1.0, metadata={"help": "Temperature of the sampled evaluation."})
    use_system_prompt: bool = field(default=True, metadata={"help": "Put the environment's rules first."})
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Remove an earlier run's files."})

    def __post_init__(self) -> None:
        if not 0 <= self.min_score <= 1:
            raise ValueError(f"min_score={self.min_score} is out of range: it must be in [0, 1]")


def main() -> None:
    arguments, clone_args, sft, model_args = parse_recipe(
        Path(__file__), (ExperimentArguments, CloneArguments, SFTConfig, ModelConfig)
    )
    main_process = PartialState().is_main_process
    if main_process:
        claim_output_dir(sft.output_dir, overwrite=clone_args.overwrite_output_dir)
    options = PlayOptions(
        output_dir=str(sft.output_dir),
        seed=sft.seed,
        num_envs=clone_args.num_envs,
        max_turns=clone_args.max_turns,
        max_new_tokens=clone_args.max_new_tokens,
        max_length=sft.max_length or 4096,
        context_policy=clone_args.context_policy,
        context_window=clone_args.context_window,
        action_format=clone_args.action_format,
        temperature=clone_args.temperature,
        use_system_prompt=clone_args.use_system_prompt,
        precision="bf16" if sft.bf16 else "fp16" if sft.fp16 else "no",
    )
    run = Experiment(arguments, options, model_args, planned_episodes=4000)
    with run.phase("demonstrations"):
        episodes = [e for e in run.demonstrations() if (e.score or 0.0) >= clone_args.min_score]
    if not episodes:
        raise SystemExit(f"no demonstration has a score of at least {clone_args.min_score}")
    with run.phase("cloning"):
        policy, arm = clone(run, sft, episodes)
    with run.phase("test"):
        results = {"bc": run.evaluate(policy, "bc")}
    if not main_process:
        return

    def write(folder: Path) -> None:
        policy.save_pretrained(folder)
        run.tokenizer.save_pretrained(folder)

    write_atomically(run.output_dir / FINAL, write)
    report = write_report(
        run.output_dir, results, seconds=run.seconds, seed=sft.seed, cost={}, extra={"cloning": asdict(arm)}
    )
    print(table(report))
    print(f"\n{arm.demonstrations} demonstrations, dev success by epoch: {arm.dev_success}")
    print(f"the clone is in {run.output_dir}/{FINAL}")


if __name__ == "__main__":
    main()

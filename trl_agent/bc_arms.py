"""Clones the demonstrations in two ways, all of them and the successful ones alone, and keeps the better."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed
from trl import SFTConfig, get_peft_config

from trl_agent.checkpoint import write_atomically
from trl_agent.demonstrations import encode_demonstrations
from trl_agent.experiment import Experiment
from trl_agent.ppo_config import AgentPPOConfig
from trl_agent.warm_start import clone_demonstrations
from trl_agent_envs.records import EpisodeRecord

FOLDER = "bc"
_REPORT = "bc_report.json"
_SCRATCH = ".cloning"  # SFTTrainer wants a folder; it writes nothing there


@dataclass
class Arm:
    """One way of cloning: how many demonstrations, dev success per epoch (0 = before), greedy test success."""

    demonstrations: int
    dev_success: list[float]
    best_epoch: int
    test: dict[str, Any] = field(default_factory=dict)


@dataclass
class Cloned:
    """Both arms, and which of them PPO starts from."""

    best: str
    arms: dict[str, Arm]


def clone_both_ways(run: Experiment, sft: SFTConfig, *, resume: bool) -> tuple[PreTrainedModel, Cloned]:
    """Return the better clone by dev success, and both arms' figures.

    The result is kept in ``<output_dir>/bc``; `resume` reads it back instead of training again.
    """
    kept = run.output_dir / FOLDER
    if resume and (kept / _REPORT).exists():
        return _read(run, kept)
    episodes = run.demonstrations()
    models: dict[str, PreTrainedModel] = {}
    arms: dict[str, Arm] = {}
    for name in ("all", "successful"):
        chosen = [e for e in episodes if name == "all" or e.success]
        if not chosen:
            continue
        models[name], arms[name] = clone(run, sft, chosen)
    best = max(arms, key=lambda name: arms[name].dev_success[arms[name].best_epoch])
    for name in arms.keys() - {best}:  # the better one is tested as "bc", greedy and sampled
        arms[name].test = run.test(models[name], f"bc-{name}", greedy=True).to_dict()
    cloned = Cloned(best, arms)
    if run.state.is_main_process:
        write_atomically(kept, lambda folder: _write(folder, models[best], run.tokenizer, cloned))
    run.state.wait_for_everyone()
    return models[best], cloned


def clone(run: Experiment, sft: SFTConfig, episodes: Sequence[EpisodeRecord]) -> tuple[PreTrainedModel, Arm]:
    """Clone some demonstrations from the experiment's model; the best epoch on dev is kept."""
    set_seed(run.options.seed)
    model, _ = run.load_model()
    encoded = encode_demonstrations(episodes, run.chat, **run.options.reading)
    segments = [segment for episode in encoded for segment in episode]
    model, report = clone_demonstrations(
        model, run.tokenizer, segments, sft, run.dev_success, peft_config=get_peft_config(run.model_args)
    )
    return model, Arm(len(encoded), report.dev_scores, report.best_epoch)


def cloning_config(ppo: AgentPPOConfig, epochs: int, learning_rate: float) -> SFTConfig:
    """SFT options of the warm start before PPO: its devices, precision and seed, no logs of its own."""
    return SFTConfig(
        output_dir=str(Path(str(ppo.output_dir)) / _SCRATCH),
        num_train_epochs=epochs,
        learning_rate=learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=10,
        weight_decay=0.01,
        per_device_train_batch_size=16,
        max_grad_norm=1.0,
        max_length=None,
        bf16=bool(ppo.bf16),
        fp16=bool(ppo.fp16),
        use_cpu=ppo.use_cpu,
        dataloader_pin_memory=not ppo.use_cpu,
        gradient_checkpointing=bool(ppo.gradient_checkpointing),
        seed=ppo.seed,
        save_strategy="no",
        logging_steps=10,
        report_to=[],
        disable_tqdm=ppo.disable_tqdm,
    )


def _write(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, cloned: Cloned) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / _REPORT).write_text(json.dumps(asdict(cloned), indent=2), encoding="utf-8")


def _read(run: Experiment, folder: Path) -> tuple[PreTrainedModel, Cloned]:
    content = json.loads((folder / _REPORT).read_text(encoding="utf-8"))
    cloned = Cloned(content["best"], {name: Arm(**arm) for name, arm in content["arms"].items()})
    base, _ = run.load_model()
    if (folder / "adapter_config.json").exists():
        adapted: Any = PeftModel.from_pretrained(base, folder, is_trainable=True)
        return adapted, cloned
    return type(base).from_pretrained(folder, dtype=base.dtype), cloned

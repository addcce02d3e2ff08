"""Behaviour cloning: TRL's SFTTrainer on the action tokens of demonstrations; the best epoch on dev is kept."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from torch import nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer

from trl_agent.trajectory import Segment

logger = logging.getLogger(__name__)

Evaluate = Callable[[PreTrainedModel], float]
"""Success rate (or any score to maximise) of a model on dev goals."""


@dataclass
class CloneReport:
    """What cloning did: dev score after each epoch (entry 0 = before training), and which epoch was kept."""

    dev_scores: list[float] = field(default_factory=list)
    best_epoch: int = 0

    @property
    def best_score(self) -> float:
        return self.dev_scores[self.best_epoch]


class _KeepBest(TrainerCallback):
    """Scores the model on dev after every epoch and remembers the trainable weights of the best one."""

    def __init__(self, evaluate: Evaluate, report: CloneReport) -> None:
        self.evaluate = evaluate
        self.report = report
        self.best: dict[str, torch.Tensor] = {}

    def score(self, model: PreTrainedModel) -> None:
        score = self.evaluate(model)
        if not self.report.dev_scores or score > self.report.best_score:
            self.report.best_epoch = len(self.report.dev_scores)
            self.best = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        self.report.dev_scores.append(score)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.score(kwargs["model"])

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.score(kwargs["model"])
        logger.info(
            "cloning: epoch %d, dev %.3f", len(self.report.dev_scores) - 1, self.report.dev_scores[-1]
        )

    @torch.no_grad()
    def restore(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if name in self.best:
                parameter.copy_(self.best[name])


def clone_demonstrations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    segments: Sequence[Segment],
    args: SFTConfig,
    evaluate: Evaluate,
    optimizer: torch.optim.Optimizer | None = None,
    peft_config: Any = None,
) -> tuple[PreTrainedModel, CloneReport]:
    """Train `model` on the action tokens of `segments`; return it with the weights of the best epoch on dev.

    Args:
        model: a causal language model; trained in place (its PEFT-wrapped form where `peft_config` is given).
        segments: tokenized demonstrations with `action_mask` (`demonstrations.encode_demonstrations`).
        args: TRL's SFT options. `completion_only_loss` is set here: without it TRL ignores the mask of
            tokenized rows and trains on every token, observations too.
        evaluate: dev score of a model, called before training and after each epoch.
        optimizer: instead of the one `args.optim` names.

    Returns:
        The model and the report.

    Raises:
        ValueError: there is no demonstration, or one without an action token.
    """
    if not segments:
        raise ValueError("there are no demonstrations to clone")
    for row, segment in enumerate(segments):
        if not any(segment.action_mask):
            raise ValueError(f"demonstration {row} has no action token")
    args = copy.deepcopy(args)
    args.completion_only_loss = True
    rows = Dataset.from_dict(
        {
            "input_ids": [list(s.input_ids) for s in segments],
            "completion_mask": [[int(m) for m in s.action_mask] for s in segments],
        }
    )
    report = CloneReport()
    keep = _KeepBest(evaluate, report)
    trainer = SFTTrainer(
        model=model,
        args=args,
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[keep],
        optimizers=(optimizer, None),
        peft_config=peft_config,
    )
    trainer.train()
    # without the autocast wrapper that Accelerate put around `forward`: the next trainer puts its own
    unwrapped = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    keep.restore(unwrapped)
    return unwrapped, report

"""What a checkpoint folder holds, and how a run continues from it.

Layout: the policy as `save_pretrained` writes it (plain Transformers or PEFT load the folder), the
tokenizer, ``value_head.safetensors``, and the state of the training: ``trainer_state.json``
(Transformers' own), ``agent_state.json`` (counters, KL controller, cost), ``optimizer.pt`` (with the
scheduler and the loss scaler) and ``rng_state.pt`` (one entry a rank).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase

from trl_agent._compat import OnlineTrainerState
from trl_agent.checkpoint import CheckpointError, load_tensors, set_rng_state
from trl_agent.modeling import ActorCritic

AGENT_STATE = "agent_state.json"
TRAINER_STATE = "trainer_state.json"
OPTIMIZER = "optimizer.pt"
RNG_STATE = "rng_state.pt"


def write_model(folder: Path, actor: ActorCritic, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write policy, tokenizer and value head."""
    policy = actor.policy
    if isinstance(policy, PeftModel):
        policy.save_pretrained(str(folder), selected_adapters=[policy.active_adapter])
    else:
        policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    actor.save_value_head(folder)


def load_model(folder: Path, actor: ActorCritic) -> None:
    """Read into `actor` what `write_model` wrote, to the bit.

    Raises:
        CheckpointError: the folder holds no model, or one of another shape or kind.
    """
    policy = actor.policy
    try:
        if isinstance(policy, PeftModel):
            _load_adapter(folder, policy)
        else:
            saved = type(policy).from_pretrained(folder, dtype=policy.dtype)
            policy.load_state_dict(saved.state_dict())
        actor.load_value_head(folder)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"{folder} cannot be loaded into {type(policy).__name__} ({error}); resume with the model and "
            "the options that the run was started with, or from another checkpoint"
        ) from error


def write_training(
    folder: Path,
    *,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    scaler: torch.amp.GradScaler | None,
    rng: list[Any],
    trainer_state: OnlineTrainerState,
    agent_state: dict[str, Any],
) -> None:
    """Write what a run needs to go on, beside the model.

    Args:
        scaler: of the loss in fp16.
        rng: `rng_state` of every rank.
        agent_state: what JSON can hold.
    """
    state = {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    if scaler is not None:
        state["scaler"] = scaler.state_dict()
    torch.save(state, folder / OPTIMIZER)
    torch.save(rng, folder / RNG_STATE)
    trainer_state.save_to_json(str(folder / TRAINER_STATE))
    (folder / AGENT_STATE).write_text(json.dumps(agent_state, indent=2), encoding="utf-8")


def load_training(
    folder: Path,
    *,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    scaler: torch.amp.GradScaler | None,
    rank: int,
) -> OnlineTrainerState:
    """Restore optimizer, scheduler, loss scaler and random generators; return the trainer's state.

    With more processes than the run was saved by, the new ones keep their generators. Nothing that
    matters under ``schedule="lockstep"`` draws from them.

    Raises:
        CheckpointError: a file is missing, damaged, or of another optimizer.
    """
    state = load_tensors(folder / OPTIMIZER)
    try:
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        if scaler is not None:
            scaler.load_state_dict(state["scaler"])
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"{folder / OPTIMIZER} does not fit ({error}); resume with the optimizer, precision and "
            "model that the run was started with"
        ) from error
    rng = load_tensors(folder / RNG_STATE)
    if rank < len(rng):
        set_rng_state(rng[rank])
    return OnlineTrainerState(**_read_json(folder / TRAINER_STATE))


def read_agent_state(folder: Path) -> dict[str, Any]:
    """Raises CheckpointError: the file is missing or damaged."""
    state: dict[str, Any] = _read_json(folder / AGENT_STATE)
    return state


def check_same_run(folder: Path, agent_state: dict[str, Any], seed: int, reference: float | None) -> None:
    """Raise CheckpointError unless the run that wrote `agent_state` had this seed and reference.

    Args:
        reference: `Reference.fingerprint`, or None without one.
    """
    if agent_state["seed"] != seed:
        raise CheckpointError(
            f"{folder} was written with seed={agent_state['seed']}, not {seed}; set that seed"
        )
    theirs = agent_state["reference"]
    if reference is None or theirs is None or math.isclose(reference, theirs, rel_tol=1e-6):
        return
    raise CheckpointError(
        f"the model given is not the one that the run in {folder} began with, and the KL is measured "
        "against that; pass the original model (the checkpoint's weights are loaded into it), or ref_model"
    )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); resume from another checkpoint") from error


def _load_adapter(folder: Path, policy: PeftModel) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    result: Any = set_peft_model_state_dict(policy, weights, adapter_name=policy.active_adapter)
    if result.unexpected_keys:
        raise ValueError(f"the adapter has weights that the policy has not: {result.unexpected_keys[:3]}")

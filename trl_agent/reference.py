"""The reference policy: the policy as it was when training began, against which the KL is measured."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor

from trl_agent.batch import MiniBatch
from trl_agent.modeling import ActorCritic

REFERENCE_ADAPTER = "trl_agent_reference"


def freeze_adapter_copy(policy: PeftModel) -> None:
    """Add a frozen copy of the active adapter under the name `REFERENCE_ADAPTER`.

    For a policy that comes with a trained adapter (an SFT one): switching that off would give the base model,
    not the policy that training begins with.
    """
    active = policy.active_adapter
    weights = {
        key: value.clone() for key, value in get_peft_model_state_dict(policy, adapter_name=active).items()
    }
    policy.add_adapter(REFERENCE_ADAPTER, copy.deepcopy(policy.peft_config[active]))
    set_peft_model_state_dict(policy, weights, adapter_name=REFERENCE_ADAPTER)
    policy.set_adapter(active)


class Reference:
    """Scores action tokens under the reference.

    Args:
        frozen: a copy of the policy, or another model. None where the policy is a PEFT model: then
            the reference is the policy with the adapter `REFERENCE_ADAPTER` if it has that, else
            with its adapter off, so there is one copy of the base model.
        actor: the actor-critic that is trained, not wrapped.
    """

    def __init__(self, actor: ActorCritic, frozen: ActorCritic | None = None) -> None:
        if frozen is None and not isinstance(actor.policy, PeftModel):
            raise ValueError("a policy without adapters needs a frozen copy as its reference")
        self._actor = actor
        self._frozen = frozen

    @torch.no_grad()
    def logprobs(self, batch: MiniBatch, temperature: float) -> Tensor:
        """Return (N,) fp32 nats, on the batch's device."""
        with self._model() as model:
            return model(
                batch.input_ids,
                batch.attention_mask,
                batch.position_ids,
                batch.action_rows,
                batch.action_cols,
                temperature=temperature,
                with_entropy=False,
                with_values=False,
            ).logprobs

    def fingerprint(self) -> float:
        """Return a number that differs, almost surely, between two references; equal on every load of one."""
        policy: Any = self._actor.policy if self._frozen is None else self._frozen.policy
        trained = f".{policy.active_adapter}." if self._frozen is None else None
        total = 0.0
        for name, parameter in policy.named_parameters():
            if trained is None or trained not in name:
                sample = parameter.detach().flatten()[:1024].double()
                total += float((sample * torch.arange(1, sample.numel() + 1, device=sample.device)).sum())
        return total

    @contextmanager
    def _model(self) -> Iterator[ActorCritic]:
        if self._frozen is not None:
            yield self._frozen
            return
        policy: Any = self._actor.policy
        if REFERENCE_ADAPTER not in policy.peft_config:
            with policy.disable_adapter():
                yield self._actor
            return
        active = policy.active_adapter
        policy.set_adapter(REFERENCE_ADAPTER, inference_mode=True)
        try:
            yield self._actor
        finally:
            policy.set_adapter(active)

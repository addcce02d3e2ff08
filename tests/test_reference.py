import pytest
import torch
from peft import LoraConfig, get_peft_model

from tests.fakes import PAD_TOKEN_ID, make_trajectory, tiny_llama
from trl_agent.batch import EpisodeTensors, collate
from trl_agent.modeling import ActorCritic
from trl_agent.reference import Reference, freeze_adapter_copy

LORA = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")


@pytest.fixture
def batch():
    return collate([EpisodeTensors.from_trajectory(make_trajectory([(3, 2), (2, 3)]))], PAD_TOKEN_ID)


def adapted(scale: float):
    policy = get_peft_model(tiny_llama(), LORA)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.fill_(scale)
    return policy


def test_adapter_off_is_the_base_model(batch):
    frozen = Reference(ActorCritic(tiny_llama()), ActorCritic(tiny_llama(), critic="none"))
    off = Reference(ActorCritic(adapted(0.5)))
    assert torch.equal(off.logprobs(batch, 0.7), frozen.logprobs(batch, 0.7))


def test_adapter_copy_is_the_adapter_as_it_was(batch):
    policy = adapted(0.5)
    actor = ActorCritic(policy)
    freeze_adapter_copy(policy)
    reference = Reference(actor)
    trainable = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    before, fingerprint = reference.logprobs(batch, 1.0), reference.fingerprint()
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(1.0)
    assert torch.equal(reference.logprobs(batch, 1.0), before)
    assert reference.fingerprint() == fingerprint
    assert {name for name, parameter in policy.named_parameters() if parameter.requires_grad} == trainable
    assert policy.active_adapter == "default"
    base = Reference(ActorCritic(tiny_llama()), ActorCritic(tiny_llama(), critic="none"))
    assert not torch.equal(before, base.logprobs(batch, 1.0))


def test_fingerprints_tell_references_apart():
    def fingerprint(seed: int) -> float:
        return Reference(
            ActorCritic(tiny_llama()), ActorCritic(tiny_llama(seed), critic="none")
        ).fingerprint()

    assert fingerprint(1) == fingerprint(1)
    assert fingerprint(1) != fingerprint(2)


def test_a_full_model_needs_a_copy():
    with pytest.raises(ValueError, match="frozen copy"):
        Reference(ActorCritic(tiny_llama()))

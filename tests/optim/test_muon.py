import io

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Muon

from trl_agent.optim.muon import MuonWithAdamW, muon_with_adamw


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens = nn.Embedding(7, 4)
        self.hidden = nn.Linear(4, 4)
        self.lm_head = nn.Linear(4, 7, bias=False)
        self.lm_head.weight = self.embed_tokens.weight

    def loss(self) -> torch.Tensor:
        return self.lm_head(torch.tanh(self.hidden(self.embed_tokens(torch.arange(7))))).square().mean()


def steps(net: Net, optimizer, n: int) -> None:
    for _ in range(n):
        optimizer.zero_grad()
        net.loss().backward()
        optimizer.step()


def test_split_and_same_steps_as_the_two_apart():
    net, twin = Net(), Net()
    optimizer = muon_with_adamw(net, lr=1e-2, muon_lr=0.05, weight_decay=0.1)
    muon = Muon([twin.hidden.weight], lr=0.05, weight_decay=0.1)
    adamw = AdamW(
        [
            {"params": [twin.embed_tokens.weight], "weight_decay": 0.1},
            {"params": [twin.hidden.bias], "weight_decay": 0.0},
        ],
        lr=1e-2,
    )
    for _ in range(3):
        optimizer.zero_grad()
        net.loss().backward()
        optimizer.step()
        muon.zero_grad()
        adamw.zero_grad()
        twin.loss().backward()
        muon.step()
        adamw.step()
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_scheduler_reaches_both_parts():
    optimizer = muon_with_adamw(Net(), lr=1.0, muon_lr=2.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()
    scheduler.step()
    assert optimizer.inner["muon"].param_groups[0]["lr"] == 1.0
    assert {group["lr"] for group in optimizer.inner["adamw"].param_groups} == {0.5}


def test_learning_rates_by_name():
    net = Net()
    optimizer = muon_with_adamw(
        net, lr=1e-3, muon_lr=0.1, lr_multiplier=lambda name: 5.0 if "hidden" in name else 1.0
    )
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates == {id(net.embed_tokens.weight): 1e-3, id(net.hidden.weight): 0.5, id(net.hidden.bias): 5e-3}


def test_state_survives_a_weights_only_file_to_the_bit():
    net = Net()
    optimizer = muon_with_adamw(net, lr=1e-2)
    steps(net, optimizer, 2)
    buffer = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    steps(net, optimizer, 2)

    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    other = Net()
    other.load_state_dict(saved["net"])
    resumed = muon_with_adamw(other, lr=1e-2)
    resumed.load_state_dict(saved["optimizer"])
    assert all(
        a is b
        for a, b in zip(
            resumed.param_groups, [g for i in resumed.inner.values() for g in i.param_groups], strict=True
        )
    )
    steps(other, resumed, 2)
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_accelerate_and_frozen_models():
    from accelerate import Accelerator

    net = Net()
    optimizer = Accelerator(cpu=True).prepare(muon_with_adamw(net, lr=1e-2))
    steps(net, optimizer, 1)
    assert optimizer.state_dict().keys() == {"muon", "adamw"}
    with pytest.raises(ValueError, match="parts"):
        optimizer.optimizer.load_state_dict({"adamw": {}})
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter"):
        muon_with_adamw(net, lr=1e-2)
    assert issubclass(MuonWithAdamW, torch.optim.Optimizer)

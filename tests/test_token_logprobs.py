from __future__ import annotations

import pytest
import torch
from torch import nn

import trl_agent.token_logprobs as module
from trl_agent.token_logprobs import LogitTransform, token_logprobs

N, H, V = 23, 16, 50


class _OpaqueLinear(nn.Linear):
    """A linear layer that must be called, as LoRA and gathered weights are."""


def _problem(seed=0, n=N):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, H, generator=generator)
    targets = torch.randint(V, (n,), generator=generator)
    weights = torch.randn(2, n, generator=generator)
    return hidden, targets, weights


def _head(bias, opaque=False):
    torch.manual_seed(1)
    plain = nn.Linear(H, V, bias=bias)
    nn.init.normal_(plain.weight, std=0.5)
    if not opaque:
        return plain
    other = _OpaqueLinear(H, V, bias=bias)
    other.load_state_dict(plain.state_dict())
    return other


def _dense(hidden, targets, head, scale, softcap, temperature):
    """The textbook: all logits at once, plain autograd."""
    logits = head(hidden) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    log_p = torch.log_softmax(logits / temperature, dim=-1)
    picked = log_p[torch.arange(len(targets)), targets]
    return picked, -(log_p.exp() * log_p).sum(-1), log_p.mean(-1)


def _run(function, head, used, n=N):
    hidden, targets, weights = _problem(n=n)
    hidden.requires_grad_()
    logprobs, entropy, mean = function(hidden, targets, head)
    # a non-linear use, so that the incoming gradients vary by token
    loss = weights[0] * logprobs.exp()
    if "entropy" in used:
        loss = loss + weights[1] * entropy.square()
    if "mean" in used:
        loss = loss + weights[1] * (mean / 8).square()
    loss.sum().backward()
    bias = head.bias.grad if head.bias is not None else torch.zeros(V)
    return [logprobs.detach(), entropy.detach(), mean.detach(), hidden.grad, head.weight.grad, bias]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("scale", "softcap"), [(1.0, None), (0.25, None), (1.0, 2.0), (0.5, 3.0)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("chunk_size", [5, 1024])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("used", ["entropy", "mean", "entropy and mean"])
def test_chunked_equals_dense(
    monkeypatch, temperature, scale, softcap, bias, opaque, chunk_size, recompute, used
):
    monkeypatch.setattr(module, "DENSE_ELEMENTS", 0 if recompute else 2**23)
    transform = LogitTransform(scale, softcap, temperature)
    ours = _run(
        lambda h, t, head: token_logprobs(
            h, t, head, transform=transform, chunk_size=chunk_size, with_mean=True
        ),
        _head(bias, opaque),
        used,
    )
    dense = _run(lambda h, t, head: _dense(h, t, head, scale, softcap, temperature), _head(bias), used)
    for a, b in zip(ours, dense, strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("recompute", [False, True])
def test_gradcheck(monkeypatch, recompute):
    """Against finite differences. The function returns fp32, so the check runs at that precision."""
    monkeypatch.setattr(module, "DENSE_ELEMENTS", 0 if recompute else 2**23)
    hidden, targets, _ = _problem(n=4)
    head = _head(bias=False)

    def value(h):
        logprobs, entropy, _ = token_logprobs(h, targets, head, transform=LogitTransform(temperature=0.6))
        return (logprobs * torch.tensor([1.0, -2.0, 0.5, 3.0])).sum() + 2.0 * entropy.sum()

    hidden.requires_grad_()
    value(hidden).backward()
    direction = torch.randn_like(hidden)
    step = 1e-2
    with torch.no_grad():
        numeric = (value(hidden + step * direction) - value(hidden - step * direction)) / (2 * step)
    assert (hidden.grad * direction).sum().item() == pytest.approx(numeric.item(), rel=2e-2, abs=2e-2)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_output_alone(which):
    hidden, targets, _ = _problem()
    grads = []
    for function in (
        lambda h, head: token_logprobs(
            h, targets, head, transform=LogitTransform(), chunk_size=7, with_mean=True
        ),
        lambda h, head: _dense(h, targets, head, 1.0, None, 1.0),
    ):
        h = hidden.clone().requires_grad_()
        function(h, _head(False))[which].sum().backward()
        grads.append(h.grad)
    torch.testing.assert_close(*grads, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("opaque", [False, True])
def test_no_tokens(opaque):
    head = _head(True, opaque)
    hidden = torch.zeros(0, H, requires_grad=True)
    logprobs, entropy, _ = token_logprobs(
        hidden, torch.zeros(0, dtype=torch.long), head, transform=LogitTransform()
    )
    (logprobs.sum() + entropy.sum()).backward()
    assert head.weight.grad.abs().sum() == 0
    assert head.bias.grad.abs().sum() == 0
    assert hidden.grad.shape == (0, H)


def test_frozen_head_and_no_entropy():
    head = _head(True).requires_grad_(False)
    hidden, targets, _ = _problem()
    logprobs, entropy, _ = token_logprobs(
        hidden.requires_grad_(), targets, head, transform=LogitTransform(), with_entropy=False
    )
    assert entropy is None
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert head.weight.grad is None


def test_entropy_is_never_negative_and_ends_right():
    head = nn.Linear(V, V, bias=False)
    nn.init.eye_(head.weight)
    certain = 200.0 * torch.eye(V)
    _, entropy, _ = token_logprobs(certain, torch.arange(V), head, transform=LogitTransform())
    assert (entropy >= 0).all()
    assert entropy.max() < 1e-6
    _, entropy, _ = token_logprobs(torch.zeros(3, V), torch.arange(3), head, transform=LogitTransform())
    torch.testing.assert_close(entropy, torch.full((3,), float(torch.tensor(V).log())))


@pytest.mark.parametrize("opaque", [False, True])
@pytest.mark.parametrize("with_autocast", [False, True])
def test_bf16_products_fp32_softmax(opaque, with_autocast):
    head = _head(False, opaque)
    hidden, targets, _ = _problem()
    exact, _, _ = token_logprobs(hidden, targets, head, transform=LogitTransform())
    if with_autocast:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logprobs, entropy, _ = token_logprobs(
                hidden.requires_grad_(), targets, head, transform=LogitTransform()
            )
            logprobs.sum().backward()
    else:
        head, hidden = head.bfloat16(), hidden.bfloat16().requires_grad_()
        logprobs, entropy, _ = token_logprobs(hidden, targets, head, transform=LogitTransform())
        logprobs.sum().backward()
    assert logprobs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logprobs, exact, atol=0.1, rtol=0.02)
    assert head.weight.grad.dtype == head.weight.dtype
    assert hidden.grad.dtype == hidden.dtype


def test_forward_hooks_on_the_head_are_honoured():
    head = _head(False)
    calls = []
    head.register_forward_hook(lambda *_: calls.append(1))
    hidden, targets, _ = _problem()
    token_logprobs(hidden, targets, head, transform=LogitTransform(), chunk_size=10)
    assert len(calls) == 3


def test_chunk_size_must_be_positive():
    hidden, targets, _ = _problem()
    with pytest.raises(ValueError, match="chunk_size"):
        token_logprobs(hidden, targets, _head(False), transform=LogitTransform(), chunk_size=0)

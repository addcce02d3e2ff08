"""Log-probability of chosen tokens, and what else a loss asks of their distribution, from hidden states, without
keeping an (N, V) tensor.

The output layer is applied to `N` hidden states in chunks. Where the layer is a plain matrix, one autograd
function does all of it: forward keeps `(N,)` statistics, backward computes each chunk's logits again and
turns them into gradients in place. Where calling the layer has effects of its own (LoRA, weights gathered
by hooks), each chunk is an activation checkpoint around the call. Small problems are done in one chunk that
keeps its logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

DENSE_ELEMENTS = 2**23
"""N * V up to which the logits are kept (32 MiB in fp32) rather than computed twice."""

CPU_CHUNK_ELEMENTS = 2**22
"""Rows * V of a chunk on a CPU, where small matrices are as fast as large ones and need less memory."""


@dataclass(frozen=True)
class LogitTransform:
    """What a model does to ``lm_head(hidden)``, then the temperature.

    z = softcap * tanh(scale * logits / softcap) / temperature, or scale * logits / temperature without a
    softcap.
    """

    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    def __call__(self, logits: Tensor) -> Tensor:
        """Return z in fp32."""
        z = logits.float()
        if self.softcap is not None:
            return torch.tanh(z * (self.scale / self.softcap)) * (self.softcap / self.temperature)
        factor = self.scale / self.temperature
        return z if factor == 1.0 else z * factor

    def softcap_slope(self, logits: Tensor) -> Tensor:
        """Return d (softcap * tanh(u / softcap)) / d u at u = scale * logits."""
        assert self.softcap is not None
        return 1.0 - torch.tanh(logits.float() * (self.scale / self.softcap)).square_()


class TokenScores(NamedTuple):
    """All (N,) fp32, in nats; None where not asked for.

    logprobs: log p of the targets. entropy: of p. mean_logprobs: the mean of log p over the vocabulary.
    """

    logprobs: Tensor
    entropy: Tensor | None
    mean_logprobs: Tensor | None


def token_logprobs(
    hidden: Tensor,
    targets: Tensor,
    head: nn.Module,
    *,
    transform: LogitTransform,
    chunk_size: int = 1024,
    with_entropy: bool = True,
    with_mean: bool = False,
) -> TokenScores:
    """Return log p(targets), the entropy of p, and the mean of log p over the vocabulary.

    Gradients flow to `hidden` and to the parameters of `head`. Products run in the autocast dtype if
    autocast is on; the softmax is fp32 always.

    Args:
        hidden: (N, H), what `head` takes. N may be 0.
        targets: (N,) long token ids.
        head: (N, H) -> (N, V) logits.
        transform: what follows the head.
        chunk_size: most rows whose logits exist at once.
        with_entropy, with_mean: compute the entropy, and the mean of log p.
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
    if not _is_plain_linear(head):
        return _through_module(hidden, targets, head, transform, chunk_size, with_entropy, with_mean)
    assert isinstance(head, nn.Linear)
    if hidden.device.type == "cpu":
        chunk_size = min(chunk_size, max(64, CPU_CHUNK_ELEMENTS // head.weight.shape[0]))
    dtype = head.weight.dtype
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
    with torch.autocast(hidden.device.type, enabled=False):
        scores = _LinearLogprobs.apply(
            hidden, head.weight, head.bias, targets, transform, chunk_size, with_entropy, with_mean, dtype
        )
    return TokenScores(*scores)


def _is_plain_linear(head: nn.Module) -> bool:
    """Whether `head` is nothing but a matrix that lies here, so that calling it may be skipped."""
    return (
        type(head) is nn.Linear
        and not head._forward_hooks
        and not head._forward_pre_hooks
        and "forward" not in vars(head)  # accelerate's offloading hooks replace the method
        and type(head.weight) is nn.Parameter  # a DTensor wants its own dispatch
        and not hasattr(head.weight, "ds_id")  # DeepSpeed ZeRO-3 gathers the weight when the module is called
    )


class _LinearLogprobs(torch.autograd.Function):
    """(hidden, weight, bias) -> (logprobs, entropy, mean_logprobs); logits live one chunk at a time.

    d logp_y / dz_j = [j = y] - p_j, dH / dz_j = -p_j (log p_j + H), and for the mean 1 / V - p_j.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        transform: LogitTransform,
        chunk_size: int,
        with_entropy: bool,
        with_mean: bool,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        num_rows = hidden.shape[0]
        keep = num_rows * weight.shape[0] <= DENSE_ELEMENTS
        rows = max(1, num_rows) if keep else chunk_size
        h, w, b = _cast(dtype, hidden, weight, bias)
        logprobs = torch.empty(num_rows, device=hidden.device)
        entropy = torch.empty_like(logprobs) if with_entropy else None
        mean = torch.empty_like(logprobs) if with_mean else None
        log_p: Tensor | None = None
        for start in range(0, num_rows, rows):
            span = slice(start, start + rows)
            log_p = _log_p(h[span], w, b, transform)
            logprobs[span] = log_p.gather(-1, targets[span].unsqueeze(-1)).squeeze(-1)
            if entropy is not None:
                entropy[span] = _entropy(log_p)
            if mean is not None:
                mean[span] = log_p.mean(dim=-1)
        ctx.save_for_backward(hidden, weight, bias, targets, entropy, log_p if keep else None)
        ctx.transform, ctx.rows, ctx.dtype = transform, rows, dtype
        ctx.set_materialize_grads(False)
        return logprobs, entropy, mean

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None, grad_mean: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropy, kept = ctx.saved_tensors
        transform: LogitTransform = ctx.transform
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if need_weight else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if need_bias else None
        if grad_logprobs is None:
            grad_logprobs = torch.zeros(hidden.shape[0], device=hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            h, w, b = _cast(ctx.dtype, hidden, weight, bias)
            for start in range(0, hidden.shape[0], ctx.rows):
                span = slice(start, start + ctx.rows)
                log_p = kept.clone() if kept is not None else _log_p(h[span], w, b, transform)
                of_entropy = None if grad_entropy is None else (grad_entropy[span], entropy[span])
                of_mean = None if grad_mean is None else grad_mean[span]
                grad = _grad_z(log_p, targets[span], grad_logprobs[span], of_entropy, of_mean)
                del log_p
                if transform.softcap is not None:
                    grad.mul_(transform.softcap_slope(F.linear(h[span], w, b)))
                grad.mul_(transform.scale / transform.temperature)
                if grad_bias is not None:
                    grad_bias += grad.sum(dim=0)
                grad = grad.to(ctx.dtype)
                if grad_hidden is not None:
                    grad_hidden[span] = grad @ w
                if grad_weight is not None:
                    _accumulate(grad_weight, grad.t(), h[span])
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None, None


def _cast(
    dtype: torch.dtype, hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _log_p(hidden: Tensor, weight: Tensor, bias: Tensor | None, transform: LogitTransform) -> Tensor:
    """(C, H) -> (C, V) fp32. At most two (C, V) buffers exist at once."""
    return transform(F.linear(hidden, weight, bias)).log_softmax(dim=-1)


def _entropy(log_p: Tensor) -> Tensor:
    """(C, V) -> (C,). Rounding would put a certain choice a hair below 0."""
    return log_p.exp().mul_(log_p).sum(dim=-1).neg_().clamp_(min=0.0)


def _grad_z(
    log_p: Tensor,
    targets: Tensor,
    grad_logprobs: Tensor,
    of_entropy: tuple[Tensor, Tensor] | None,
    grad_mean: Tensor | None,
) -> Tensor:
    """Gradient of z, (C, V). `of_entropy` is (gradient of the entropy, entropy). Overwrites `log_p`."""
    grad_logprobs = grad_logprobs.unsqueeze(-1)
    # both log p of the target and the mean pull every p_j down
    down = grad_logprobs if grad_mean is None else grad_logprobs + grad_mean.unsqueeze(-1)
    result = log_p.exp()
    if of_entropy is None:
        result.mul_(-down)
    else:
        grad_entropy, entropy = (item.unsqueeze(-1) for item in of_entropy)
        result.mul_(log_p.add_(entropy).mul_(-grad_entropy).sub_(down))
    if grad_mean is not None:
        result.add_(grad_mean.unsqueeze(-1) / result.shape[-1])
    return result.scatter_add_(-1, targets.unsqueeze(-1), grad_logprobs)


def _accumulate(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, with the sum in fp32."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _through_module(
    hidden: Tensor,
    targets: Tensor,
    head: nn.Module,
    transform: LogitTransform,
    chunk_size: int,
    with_entropy: bool,
    with_mean: bool,
) -> TokenScores:
    """Call `head` chunk by chunk; recompute each chunk in backward."""

    def run(h: Tensor, ids: Tensor) -> TokenScores:
        log_p = transform(head(h)).log_softmax(dim=-1)
        picked = log_p.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        entropy = -(log_p.exp() * log_p).sum(dim=-1).clamp(max=0.0) if with_entropy else None
        return TokenScores(picked, entropy, log_p.mean(dim=-1) if with_mean else None)

    if hidden.shape[0] <= chunk_size and not torch.is_grad_enabled():
        return run(hidden, targets)
    parts = [
        checkpoint(run, h, ids, use_reentrant=False)
        for h, ids in zip(torch.split(hidden, chunk_size), torch.split(targets, chunk_size), strict=True)
    ]
    logprobs, entropy, mean = zip(*parts)
    return TokenScores(
        torch.cat(logprobs),
        torch.cat(entropy) if with_entropy else None,
        torch.cat(mean) if with_mean else None,
    )

"""Muon on the hidden matrices and AdamW on the rest, as one optimizer.

Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; `torch.optim.Muon`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

NOT_HIDDEN = ("embed", "wte", "wpe", "lm_head", "value_head", "score", "classifier")
"""Names of matrices that are 2-D but map to or from vocabulary or scalars: Muon is not meant for them."""


ParamGroup = dict[str, Any]


class MuonWithAdamW(Optimizer):
    """One `torch.optim.Optimizer` that steps a Muon for some groups and an AdamW for the others.

    The groups of both are this optimizer's `param_groups` (the same dict objects), so a learning-rate
    scheduler or Accelerate sees one ordinary optimizer. The state dict is `{"muon": ..., "adamw": ...}`:
    tensors and numbers only, so `torch.load(weights_only=True)` reads it.

    Args:
        muon_params: 2-D matrices, or parameter groups of them.
        adamw_params: everything else, as parameters or groups.
        lr: AdamW's learning rate, for groups that have none of their own.
        muon_lr: Muon's learning rate, likewise (0.02 is Muon's usual value, and rarely needs tuning).
        weight_decay: of both, for groups that have none of their own.
        betas: AdamW's.
        momentum: Muon's.
    """

    def __init__(
        self,
        muon_params: Iterable[nn.Parameter | ParamGroup],
        adamw_params: Iterable[nn.Parameter | ParamGroup],
        *,
        lr: float,
        muon_lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        momentum: float = 0.95,
    ) -> None:
        matrices: list[Any] = list(muon_params)
        rest: list[Any] = list(adamw_params)
        if not matrices and not rest:
            raise ValueError("MuonWithAdamW got no parameter; is everything frozen?")
        self.inner: dict[str, Optimizer] = {}
        if matrices:
            self.inner["muon"] = Muon(matrices, lr=muon_lr, weight_decay=weight_decay, momentum=momentum)
        if rest:
            self.inner["adamw"] = AdamW(rest, lr=lr, weight_decay=weight_decay, betas=betas)
        super().__init__([group for inner in self.inner.values() for group in inner.param_groups], {})
        # Optimizer.__init__ copies the list but keeps the dicts, so a scheduler that writes group["lr"]
        # reaches the optimizer that owns the group.

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for inner in self.inner.values():
            inner.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {name: inner.state_dict() for name, inner in self.inner.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore both optimizers.

        Raises:
            ValueError: the state was saved by an optimizer with other parts.
        """
        if set(state_dict) != set(self.inner):
            raise ValueError(
                f"optimizer state has the parts {sorted(state_dict)}, this one has {sorted(self.inner)};"
                " resume with the `optim` and the model the run was started with"
            )
        for name, inner in self.inner.items():
            inner.load_state_dict(state_dict[name])
        # load_state_dict made new group dicts
        self.param_groups = [group for inner in self.inner.values() for group in inner.param_groups]


def muon_with_adamw(
    model: nn.Module,
    lr: float,
    muon_lr: float = 0.02,
    weight_decay: float = 0.0,
    lr_multiplier: Callable[[str], float] | None = None,
) -> MuonWithAdamW:
    """Split a model's trainable parameters: 2-D hidden matrices to Muon, the rest to AdamW.

    Embeddings, output heads and value heads (by name, `NOT_HIDDEN`, or because an `nn.Embedding` owns them,
    so a tied `lm_head` too) go to AdamW, with everything that is not a matrix. AdamW decays matrices only.

    Args:
        model: any module; parameters with `requires_grad=False` are left out.
        lr: AdamW's learning rate.
        muon_lr: Muon's learning rate.
        weight_decay: of both.
        lr_multiplier: parameter name -> factor on its learning rate; None = 1 for all.
    """
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    matrices: dict[tuple[float, float], list[nn.Parameter]] = {}
    rest: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        outer = id(parameter) in embeddings or any(part in name for part in NOT_HIDDEN)
        groups, rate = (rest, lr) if outer or parameter.ndim != 2 else (matrices, muon_lr)
        key = (rate * (lr_multiplier(name) if lr_multiplier else 1.0), weight_decay * (parameter.ndim >= 2))
        groups.setdefault(key, []).append(parameter)
    return MuonWithAdamW(_param_groups(matrices), _param_groups(rest), lr=lr, muon_lr=muon_lr)


def _param_groups(groups: dict[tuple[float, float], list[nn.Parameter]]) -> list[ParamGroup]:
    return [{"params": params, "lr": lr, "weight_decay": decay} for (lr, decay), params in groups.items()]

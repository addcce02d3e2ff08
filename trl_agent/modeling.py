"""Actor and critic in one forward pass, with logits at action tokens only.

The decoder runs once over the `(B, T)` rows and returns hidden states, never logits. The hidden state
before each action token is gathered once; the output layer (in chunks) and the value head see only those
`N` vectors. On web trajectories nine tokens in ten are observations, so this is where most of the time and
memory goes otherwise.
"""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from peft import PeftModel
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from trl_agent.token_logprobs import LogitTransform, token_logprobs

Critic = Literal["shared", "separate", "none"]

VALUE_HEAD_FILE = "value_head.safetensors"
VALUE_MODEL_FILE = "value_model.safetensors"


class ActorCriticOutput(NamedTuple):
    """All fp32. logprobs: (N,) in nats of the temperature-scaled policy. entropy: (N,) in nats. values:
    (N,), V before each action token. last_values: (E,), V after each episode's last token. mean_logprobs: (N,) in
    nats, over the vocabulary.

    A tuple, because wrappers that shard or cast (DDP, FSDP, accelerate) look inside it for tensors.
    """

    logprobs: Tensor
    entropy: Tensor | None
    values: Tensor | None
    last_values: Tensor | None
    mean_logprobs: Tensor | None = None


class ActorCritic(nn.Module):
    """A causal language model with a value head.

    Args:
        policy: a decoder-only language model, or one wrapped by PEFT (not prompt learning).
        critic: "shared" puts the value head on the policy's own trunk, "separate" on `value_model`, "none"
            makes no head.
        value_model: trunk of a separate critic; any Transformers model with hidden states (an output layer
            it may have is not used). None with "separate" copies the policy's trunk as it is now.
        chunk_size: most action tokens whose logits exist at once.

    The value head is Linear(H, 1) in fp32 and starts at zero.

    Raises:
        ValueError: a model this class cannot drive, by name and with the reason.
    """

    def __init__(
        self,
        policy: PreTrainedModel | PeftModel,
        *,
        critic: Critic = "shared",
        value_model: nn.Module | None = None,
        chunk_size: int = 1024,
    ) -> None:
        super().__init__()
        if critic not in ("shared", "separate", "none"):
            raise ValueError(f'critic must be "shared", "separate" or "none", got {critic!r}')
        if value_model is not None and critic != "separate":
            raise ValueError(
                f'a value_model was given, but critic={critic!r} does not use it; use critic="separate"'
            )
        _refuse_unsupported(policy)
        self.policy = policy
        self.config = policy.config
        self.critic: Critic = critic
        self.chunk_size = chunk_size
        self._transform = _logit_transform(_causal_lm(policy))
        self._logits_checked = False
        self.value_model: nn.Module | None = None
        self.value_head: nn.Linear | None = None
        if critic == "separate":
            self.value_model = value_model if value_model is not None else copy.deepcopy(_decoder(policy))
        if critic != "none":
            trunk = _decoder(policy) if self.value_model is None else _decoder(self.value_model)
            self.value_head = _new_value_head(trunk)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        action_rows: Tensor,
        action_cols: Tensor,
        last_rows: Tensor | None = None,
        last_cols: Tensor | None = None,
        *,
        temperature: float = 1.0,
        with_entropy: bool = True,
        with_values: bool = True,
        with_mean: bool = False,
    ) -> ActorCriticOutput:
        """Score the action tokens of a `MiniBatch` (see there for the shapes).

        Args:
            temperature: divides the logits, as at sampling; above 0.
            with_entropy, with_values, with_mean: what to compute beside the log-probabilities; None is returned
                for the rest. Values are None without a critic. `last_values` also needs `last_rows` and `last_cols`.
        """
        if not temperature > 0:
            raise ValueError(f"temperature must be above 0, got {temperature} (score greedy actions at 1)")
        if not self._logits_checked:
            self.check_logits()
        num_actions = action_rows.numel()
        rows, cols = action_rows, action_cols - 1
        with_values = with_values and self.value_head is not None
        with_last = False
        if with_values and last_rows is not None and last_cols is not None:
            with_last = True
            rows, cols = torch.cat([rows, last_rows]), torch.cat([cols, last_cols])
        inputs = (input_ids, attention_mask, position_ids)
        hidden = _gather(_hidden_states(_decoder(self.policy), *inputs), rows, cols)
        logprobs, entropy, mean = token_logprobs(
            hidden[:num_actions],
            input_ids[action_rows, action_cols],
            _causal_lm(self.policy).get_output_embeddings(),
            transform=LogitTransform(self._transform.scale, self._transform.softcap, temperature),
            chunk_size=self.chunk_size,
            with_entropy=with_entropy,
            with_mean=with_mean,
        )
        if not with_values:
            return ActorCriticOutput(logprobs, entropy, None, None, mean)
        if self.value_model is not None:
            hidden = _gather(_hidden_states(_decoder(self.value_model), *inputs), rows, cols)
        values = self._values(hidden)
        return ActorCriticOutput(
            logprobs, entropy, values[:num_actions], values[num_actions:] if with_last else None, mean
        )

    def _values(self, hidden: Tensor) -> Tensor:
        """(N, H) -> (N,) fp32, whatever dtype the trunk or autocast has."""
        assert self.value_head is not None
        with torch.autocast(hidden.device.type, enabled=False):
            head = self.value_head
            return F.linear(hidden.float(), head.weight.float(), head.bias.float()).squeeze(-1)

    @torch.no_grad()
    def check_logits(self) -> None:
        """Compare the log-probabilities computed here with the model's own on two short rows. Runs once.

        Raises:
            ValueError: they differ, so the model does something to its logits that is not known here.
        """
        lm = _causal_lm(self.policy)
        device = lm.get_input_embeddings().weight.device
        vocab = int(lm.config.get_text_config().vocab_size)
        input_ids = torch.tensor([[1, 2, 3], [3, 1, 0]], device=device) % vocab
        mask = torch.tensor([[True, True, True], [True, True, False]], device=device)
        positions = torch.arange(3, device=device).expand(2, 3)
        training = self.policy.training
        self.policy.eval()
        try:
            own = _call(lm, input_ids, mask, positions).logits.float()
            rows, cols = mask.nonzero(as_tuple=True)
            hidden = _gather(_hidden_states(_decoder(self.policy), input_ids, mask, positions), rows, cols)
            ours = self._transform(lm.get_output_embeddings()(hidden))
        finally:
            self.policy.train(training)
        own = own[rows, cols]
        tolerance = 1e-4 if own.dtype == hidden.dtype else 5e-2
        worst = (own - ours).abs().max().item()
        if not worst <= tolerance * max(1.0, own.abs().max().item()):
            raise ValueError(
                f"{type(lm).__name__}: logits computed from its hidden states differ from its own by "
                f"{worst:.3g}; it transforms hidden states or logits in a way that trl_agent.modeling does "
                "not know. Use another model, or teach _logit_transform about it"
            )
        self._logits_checked = True

    def gradient_checkpointing_enable(self, **kwargs: Any) -> None:
        """Recompute activations in backward, in the policy and in a separate critic."""
        for model in self._trunks():
            model.gradient_checkpointing_enable(**kwargs)

    def gradient_checkpointing_disable(self) -> None:
        for model in self._trunks():
            model.gradient_checkpointing_disable()

    def _trunks(self) -> list[Any]:
        return [self.policy] if self.value_model is None else [self.policy, self.value_model]

    @property
    def is_gradient_checkpointing(self) -> bool:
        return bool(self.policy.is_gradient_checkpointing)

    def save_value_head(self, directory: str | Path) -> None:
        """Write the value head, and a separate critic's trunk, into `directory` (made if missing)."""
        if self.value_head is None:
            return
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            name: tensor.detach().cpu().contiguous() for name, tensor in self.value_head.state_dict().items()
        }
        save_file(state, folder / VALUE_HEAD_FILE)
        if self.value_model is not None:
            save_model(self.value_model, str(folder / VALUE_MODEL_FILE))

    def load_value_head(self, directory: str | Path) -> None:
        """Read what `save_value_head` wrote.

        Raises:
            FileNotFoundError: the folder holds no value head, or no separate critic where one is wanted.
        """
        if self.value_head is None:
            return
        folder = Path(directory)
        wanted = [VALUE_HEAD_FILE] + ([VALUE_MODEL_FILE] if self.value_model is not None else [])
        for name in wanted:
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"{folder} has no {name}, which critic={self.critic!r} needs; "
                    "was it saved with another critic?"
                )
        self.value_head.load_state_dict(load_file(folder / VALUE_HEAD_FILE))
        if self.value_model is not None:
            load_model(self.value_model, str(folder / VALUE_MODEL_FILE))


def _refuse_unsupported(policy: nn.Module) -> None:
    lm = _causal_lm(policy)
    name = type(lm).__name__
    if isinstance(policy, PeftModel) and policy.active_peft_config.is_prompt_learning:
        raise ValueError(
            f"{name} is wrapped by {policy.active_peft_config.peft_type}: prompt learning adds "
            "tokens that are in no trajectory. Use LoRA or another method that changes weights"
        )
    if getattr(lm.config, "is_encoder_decoder", False):
        raise ValueError(
            f"{name} is an encoder-decoder model; ActorCritic needs a decoder-only language model"
        )
    if lm.base_model is lm or lm.get_output_embeddings() is None:
        raise ValueError(
            f"{name} has no language-model head; load it with AutoModelForCausalLM, not AutoModel"
        )


def _causal_lm(model: nn.Module) -> Any:
    """The Transformers model inside a PEFT wrapper, or the model itself."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _decoder(model: nn.Module) -> Any:
    """The part of a model that maps tokens to the hidden states its output layer takes."""
    lm = _causal_lm(model)
    return lm.base_model


def _logit_transform(lm: Any) -> LogitTransform:
    """How the model changes lm_head's output, from its config. `check_logits` verifies it."""
    config = lm.config.get_text_config()
    scale = 1.0
    for name in ("logit_scale", "lm_head_multiplier"):  # Cohere; Falcon-H1
        value = getattr(config, name, None)
        if isinstance(value, (int, float)):
            scale *= value
    divisor = getattr(config, "logits_scaling", None)  # Granite
    if isinstance(divisor, (int, float)):
        scale /= divisor
    return LogitTransform(scale=scale, softcap=getattr(config, "final_logit_softcapping", None))  # Gemma


def _new_value_head(trunk: Any) -> nn.Linear:
    config = trunk.config.get_text_config()
    head = nn.Linear(config.hidden_size, 1, dtype=torch.float32, device=next(trunk.parameters()).device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def _call(model: Any, input_ids: Tensor, attention_mask: Tensor | None, position_ids: Tensor) -> Any:
    """Call a Transformers model without cache; leave `position_ids` out where it has none (ALiBi,
    recurrent).
    """
    kwargs: dict[str, Any] = {"attention_mask": attention_mask, "use_cache": False, "return_dict": True}
    if "position_ids" in inspect.signature(model.forward).parameters:
        kwargs["position_ids"] = position_ids
    return model(input_ids=input_ids, **kwargs)


def _hidden_states(decoder: Any, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
    """(B, T, H). With padding on the right only, causal attention never looks at it, so the mask is left
    out: that opens the fast is-causal kernels.
    """
    right_padded = bool((attention_mask[:, 1:] <= attention_mask[:, :-1]).all())
    mask = None if right_padded else attention_mask
    hidden: Tensor = _call(decoder, input_ids, mask, position_ids).last_hidden_state
    return hidden


def _gather(hidden: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """(B, T, H) -> (N, H) at the positions given."""
    return hidden.flatten(0, 1).index_select(0, rows * hidden.shape[1] + cols)

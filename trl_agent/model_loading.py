"""Policy and tokenizer from a Hub id, a folder, a folder with a GGUF file, or the small base that ships with us."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

SHOP_BASE = Path(__file__).parent / "assets" / "webshop_base"
"""The packaged small model (see its README.md): a Llama of 2 M parameters that has read shopping sessions."""


def load_policy(
    name_or_path: str | Path | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    revision: str | None = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer.

    Args:
        name_or_path: Hub id, folder, or folder with exactly one ``.gguf`` file and no ``config.json`` (its weights
            are converted to `dtype`; needs the package `gguf`). None is the packaged small base.
        dtype: of the weights.
        trust_remote_code: run code that comes with the model. Off unless you trust its author.

    Raises:
        ValueError: a folder that holds neither a model nor one GGUF file; a tokenizer without a pad token and
            without an end-of-sequence token to serve as one.
    """
    source = str(SHOP_BASE if name_or_path is None else name_or_path)
    common = {"trust_remote_code": trust_remote_code, "revision": revision or "main"}
    gguf_file = _gguf_file(Path(source))
    if gguf_file is not None:
        common["gguf_file"] = gguf_file
    tokenizer = AutoTokenizer.from_pretrained(source, **common)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ValueError(
                f"the tokenizer of {source} has neither a pad token nor an end-of-sequence token: "
                "set tokenizer.pad_token and save it beside the model"
            )
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype=dtype, attn_implementation=attn_implementation, **common
    )
    return model, tokenizer


def _gguf_file(folder: Path) -> str | None:
    """Name of the folder's only GGUF file, if it is a GGUF folder."""
    if not folder.is_dir() or (folder / "config.json").exists():
        return None
    found = sorted(path.name for path in folder.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(found) if found else "none"
    raise ValueError(f"{folder} has no config.json and not exactly one .gguf file (found: {names})")

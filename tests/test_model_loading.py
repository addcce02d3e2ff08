"""What can be loaded, and what is said about what cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trl_agent.model_loading import SHOP_BASE, load_policy


def test_the_packaged_base_is_the_default_and_small() -> None:
    model, tokenizer = load_policy()
    assert next(model.parameters()).dtype == torch.float32
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.pad_token_id is not None
    assert (SHOP_BASE / "model.safetensors").stat().st_size <= 8 * 2**20


@pytest.mark.parametrize("names", [[], ["a.gguf", "b.gguf"]])
def test_a_folder_without_one_model_is_refused(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"not exactly one \.gguf"):
        load_policy(tmp_path)

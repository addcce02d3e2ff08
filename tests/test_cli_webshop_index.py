"""`trl-agent webshop index` and `generate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from trl_agent.cli import main


def test_generate_then_index_then_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = str(tmp_path / "data"), str(tmp_path / "built")
    assert main(["webshop", "generate", "--num_products", "60", "--out", data]) == 0
    assert capsys.readouterr().out == f"{data}: 60 products in 3 files\n"
    assert main(["webshop", "index", data, "--out", out]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: 60 products, ")
    assert main(["webshop", "splits", "--data_dir", out, "--json"]) == 0
    ids = capsys.readouterr().out
    assert main(["webshop", "splits", "--data_dir", data, "--json"]) == 0
    assert capsys.readouterr().out == ids
    assert main(["webshop", "index", "synthetic:20", "--out", out]) == 1
    assert "pass --overwrite" in capsys.readouterr().err
    assert main(["webshop", "index", "synthetic:20", "--out", out, "--overwrite", "--price_seed", "2"]) == 0
    assert ": 20 products, " in capsys.readouterr().out
    assert main(["webshop", "splits", "--data_dir", out]) == 1
    assert "price_seed 2" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["index", "synthetic:3000"], ["generate", "--num_products", "3000"]])
def test_an_interrupt_leaves_nothing(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: object, phase: str, done: int, total: int) -> None:
        assert any(tmp_path.iterdir())
        raise KeyboardInterrupt

    monkeypatch.setattr("trl_agent.cli_webshop_index._Bars.show", interrupt)
    assert main(["webshop", *command, "--out", str(tmp_path / "out")]) == 1
    assert "stopped; nothing is left" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    wrong = {
        "nowhere": ["index", str(tmp_path / "nowhere"), "--out", out],
        "synthetic:N needs a number": ["index", "synthetic:many", "--out", out],
        "num_products must be in": ["generate", "--num_products", "0", "--out", out],
        "exists already": ["generate", "--num_products", "3", "--out", str(Path(__file__).parent)],
    }
    for message, command in wrong.items():
        assert main(["webshop", *command]) == 1
        said = capsys.readouterr().err
        assert message in said
        assert said.startswith(f"trl-agent webshop {command[0]}: ")
    assert list(tmp_path.iterdir()) == []

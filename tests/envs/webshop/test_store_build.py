"""Builds on the disk: whole or not at all, and errors that name the record."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trl_agent_envs.webshop import Catalog, CatalogError, RawCatalog, Shop
from trl_agent_envs.webshop.env import WebShopEnv
from trl_agent_envs.webshop.store_build import build_store
from trl_agent_envs.webshop.store_format import StoreError, is_store
from trl_agent_envs.webshop.synthetic import generate
from trl_agent_envs.webshop.synthetic_files import write_files

_BUILD = """
import sys
from trl_agent_envs.webshop.store_build import build_store
build_store("synthetic:1000000", sys.argv[1])
"""


def test_a_killed_build_leaves_nothing_that_loads(tmp_path: Path) -> None:
    out = tmp_path / "built"
    builder = subprocess.Popen([sys.executable, "-c", _BUILD, str(out)])
    try:
        deadline = time.monotonic() + 60
        while not any(file.stat().st_size > 100_000 for file in tmp_path.glob(".built.*/data.bin")):
            assert builder.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        builder.kill()
        builder.wait()
    (leftover,) = tmp_path.iterdir()
    for folder in (out, leftover):
        assert not is_store(folder)
        with pytest.raises(CatalogError, match=r"items_shuffle\*\.json"):
            Shop.load(folder)
    build_store("synthetic:30", out)
    assert [entry.name for entry in tmp_path.iterdir()] == ["built"]
    assert len(Shop.load(out).catalog) == 30


def test_what_stands_there_is_not_overwritten_unasked(tmp_path: Path) -> None:
    out = build_store(generate(30), tmp_path / "built")
    with pytest.raises(StoreError, match="exists already; pass --overwrite"):
        build_store(generate(20), out)
    assert len(Shop.load(out).catalog) == 30
    build_store(generate(20), out, overwrite=True)
    assert len(Shop.load(out).catalog) == 20
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").touch()
    for overwrite in (False, True):
        with pytest.raises(StoreError, match="is not a built catalogue; name another folder"):
            build_store(generate(20), mine, overwrite=overwrite)
    assert (mine / "thesis.txt").exists()


def test_an_environment_opens_a_built_folder(tmp_path: Path) -> None:
    env = WebShopEnv(build_store("synthetic:60", tmp_path / "built"), split="dev")
    other = WebShopEnv(generate(60), split="dev")
    assert [env.reset(seed=seed) for seed in range(20)] == [other.reset(seed=seed) for seed in range(20)]


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    build_store("synthetic:2500", tmp_path / "a", progress=lambda *call: told.append(call))
    assert [call for call in told if call[0] == "products"] == [
        ("products", done, 2500) for done in (1000, 2000, 2500)
    ]
    assert told[-1][0] == "index"
    assert told[-1][1] == told[-1][2]
    files = write_files(500, tmp_path / "files")
    told.clear()
    build_store(files, tmp_path / "b", progress=lambda *call: told.append(call))
    size = (files / "items_shuffle_500.json").stat().st_size
    assert {call[1:] for call in told if call[0] == "products"} == {(size, size)}


def test_the_same_error_as_in_memory(tmp_path: Path, raw: RawCatalog) -> None:
    wrongs = [
        ("products", 3, "name", None),
        ("products", 2, "customization_options", {"Size": 7}),
        ("attributes", "B000000003", "instruction_attributes", []),
        ("human", "B000000003", None, [{"instruction_attributes": ["a"]}]),
    ]
    for number, (part, where, key, value) in enumerate(wrongs):
        records = json.loads(
            json.dumps({"products": raw.products, "attributes": raw.attributes, "human": raw.human})
        )
        if key is None:
            records[part][where] = value
        else:
            records[part][where][key] = value
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, content in zip(("items_shuffle_6", "items_ins_v2_6", "items_human_ins"), records.values()):
            (folder / f"{name}.json").write_text(json.dumps(content))
        with pytest.raises(CatalogError) as expected:
            Catalog.load(folder)
        with pytest.raises(CatalogError) as found:
            build_store(folder, tmp_path / "out")
        with pytest.raises(CatalogError) as loaded:
            Shop.load(folder)
        assert str(found.value) == str(expected.value) == str(loaded.value)
        assert f"record {where}" in str(found.value)
        assert str(folder) in str(found.value)
    assert not any("out" in entry.name for entry in tmp_path.iterdir())


def test_written_files_hold_the_generator_s_catalogue(tmp_path: Path) -> None:
    expected = Catalog.load(generate(150, seed=2))
    loaded = Catalog.load(write_files(150, tmp_path / "files", seed=2))
    assert loaded.products == expected.products
    assert loaded.human == expected.human
    names = sorted(file.name for file in (tmp_path / "files").iterdir())
    assert names == ["items_human_ins.json", "items_ins_v2_150.json", "items_shuffle_150.json"]
    with pytest.raises(CatalogError, match="exists already; name a new folder"):
        write_files(5, tmp_path / "files")
    with pytest.raises(CatalogError, match=r"num_products must be in \[1, 24010000\], got 0"):
        write_files(0, tmp_path / "none")
    assert Catalog.load(write_files(1, tmp_path / "one")).products == expected_one()


def expected_one() -> object:
    return Catalog.load(generate(1)).products


def test_a_data_dir_is_a_folder_never_the_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CatalogError, match=r"data_dir 'synthetic:5' does not exist"):
        Shop.load("synthetic:5")

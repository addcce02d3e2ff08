from __future__ import annotations

import ast
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trl_agent_envs.webshop import CatalogError, Shop, shop, store_cache
from trl_agent_envs.webshop.store_cache import cache_folder, cached_store
from trl_agent_envs.webshop.store_format import DATA, MANIFEST
from trl_agent_envs.webshop.synthetic_files import write_files


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRL_AGENT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "webshop"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_files(40, tmp_path / "data")


def load(data: Path | None) -> Shop:
    """As a new process would: what this one has loaded is forgotten."""
    key = shop._source_key(data)
    shop._worlds.pop(key, None)
    for known in [known for known in shop._shops if known[0] == key]:
        del shop._shops[known]
    return Shop.load(data)


def entries(cache: Path) -> list[str]:
    return sorted(entry.name for entry in cache.iterdir())


def is_cached(loaded: Shop) -> bool:
    return loaded._stored is not None


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRL_AGENT_CACHE", "/a")
    assert cache_folder() == Path("/a/webshop")
    monkeypatch.setenv("TRL_AGENT_CACHE", "")
    assert cache_folder() is None
    monkeypatch.delenv("TRL_AGENT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/b/trl_agent/webshop")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "trl_agent" / "webshop"


def test_a_folder_is_built_once(cache: Path, data: Path) -> None:
    first = load(data)
    assert is_cached(first)
    (entry,) = entries(cache)
    before = (cache / entry / MANIFEST).stat().st_mtime_ns
    second = load(data)
    assert second is not first
    assert second.goals() == first.goals()
    assert entries(cache) == [entry]
    assert (cache / entry / MANIFEST).stat().st_mtime_ns == before


def test_changed_files_are_built_anew(cache: Path, data: Path) -> None:
    load(data)
    file = data / "items_shuffle_40.json"
    file.write_text(json.dumps(json.loads(file.read_text())[:-1]))
    assert len(load(data).catalog) == 39
    assert len(entries(cache)) == 2


def test_another_price_seed_needs_no_other_build(cache: Path, data: Path) -> None:
    load(data)
    shop._shops.clear()
    seeded = Shop.load(data, price_seed=5)
    assert len(entries(cache)) == 1
    without = Shop(seeded.catalog, price_seed=5)
    assert seeded.goals() == without.goals()
    assert dict(seeded.prices) == dict(without.prices)
    assert seeded.goals() != load(data).goals()


def test_old_entries_of_a_source_go(cache: Path, data: Path) -> None:
    for number in range(7):
        assert cached_store("name", number, data) is not None
        os.utime(cache / max(entries(cache), key=lambda e: (cache / e).stat().st_mtime), (number, number))
    other = cached_store("another name", 0, data)
    assert other is not None
    assert len(entries(cache)) == 5  # four of one source, one of the other


def test_a_damaged_entry_is_replaced(cache: Path, data: Path) -> None:
    load(data)
    (entry,) = entries(cache)
    (cache / entry / DATA).write_bytes(b"")
    assert is_cached(load(data))
    assert (cache / entry / DATA).stat().st_size > 100
    (cache / entry / MANIFEST).unlink()
    assert is_cached(load(data))
    assert (cache / entry / MANIFEST).exists()


def test_what_another_process_has_built_meanwhile_is_left_alone(cache: Path, data: Path) -> None:
    load(data)
    (entry,) = cache.iterdir()
    before = entry.stat().st_ino
    store_cache._build(entry, data, replace=False)
    assert entry.stat().st_ino == before
    assert len(list(cache.iterdir())) == 1


def test_an_entry_s_name_covers_all_the_code_that_decides_what_it_holds() -> None:
    folder = Path(store_cache.__file__).parent
    found, new = set[str](), {"store_build", "synthetic"}
    while new:
        found |= new
        new = {
            node.module
            for name in found
            for node in ast.walk(ast.parse((folder / f"{name}.py").read_text()))
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
        } - found
    assert found - {"new_folder"} == set(store_cache._MODULES.split())  # how it is put there does not matter


def test_turned_off(monkeypatch: pytest.MonkeyPatch, data: Path, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("TRL_AGENT_CACHE", "")
    loaded = load(data)
    assert not is_cached(loaded)
    assert len(loaded.catalog) == 40
    assert caplog.records == []


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRL_AGENT_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        loaded = load(data)
    assert not is_cached(loaded)
    assert len(loaded.catalog) == 40
    (record,) = caplog.records
    assert "TRL_AGENT_CACHE" in record.getMessage()
    assert str(data) in record.getMessage()


def test_malformed_data_is_an_error_not_a_missing_cache(cache: Path, data: Path) -> None:
    (data / "items_human_ins.json").write_text("[]")
    with pytest.raises(CatalogError, match=r"items_human_ins.json: expected an object at the top, got list"):
        load(data)
    assert not cache.exists() or entries(cache) == []


def test_large_sources_are_not_built_on_the_side(
    cache: Path, data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shop, "MAX_SOURCE_BYTES", 100)
    with caplog.at_level(logging.WARNING):
        assert not is_cached(load(data))
    assert "trl-agent webshop index" in caplog.text
    assert not cache.exists()


_LOAD = """
import sys
from trl_agent_envs.webshop import Shop
shop = Shop.load(sys.argv[1])
print(shop._stored is not None, shop.goals()[0].instruction)
"""


def test_processes_that_start_at_once_share_one_entry(cache: Path, data: Path) -> None:
    workers = [
        subprocess.Popen([sys.executable, "-c", _LOAD, str(data)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = {worker.communicate(timeout=60)[0] for worker in workers}
    assert said == {f"True {load(data).goals()[0].instruction}\n"}
    assert len(entries(cache)) == 1

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agent_envs.webshop import CatalogError
from trl_agent_envs.webshop.json_stream import read_array, read_object

_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
_values = st.recursive(
    _scalars | st.text(alphabet=st.characters(), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("json") / "data.json"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(_values, max_size=5),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.integers(1, 40),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_arrays_as_the_whole_file_at_once(
    file: Path, values: list[Any], indent: int | None, ascii_only: bool, chunk: int, encoding: str
) -> None:
    """Wherever the pieces that are read end: in words, numbers, escapes or surrogate pairs."""
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
    file.write_text(f" {text}\n", encoding=encoding, errors="surrogatepass", newline="")
    assert list(read_array(file, chunk=chunk)) == json.loads(text)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=5), _values, max_size=5), st.integers(1, 30))
def test_objects_as_the_whole_file_at_once(file: Path, values: dict[str, Any], chunk: int) -> None:
    file.write_text(json.dumps(values), encoding="utf-8")
    assert list(read_object(file, chunk=chunk)) == list(values.items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is not JSON: Expecting value \(char 0\)"),
        (b"[", r"is not JSON: record 0: Expecting value \(char 1\)"),
        (b"[1, 2", r"is not JSON: record 2: Expecting ',' delimiter \(char 5\)"),
        (b"[1, 2,", r"is not JSON: record 2: Expecting value \(char 6\)"),
        (b'[{"a": 1}, {"a" 2}]', r"is not JSON: record 1: Expecting ':' delimiter \(char 16\)"),
        (b'[{"a": 1}, {"a": "x]', r"is not JSON: record 1: Unterminated string starting at \(char 17\)"),
        (b"[1 2]", r"is not JSON: record 1: Expecting ',' delimiter"),
        (b"[1] 2", r"is not JSON: record 1: Extra data \(char 4\)"),
        (b"[1]]", "Extra data"),
        (b'["\xff"]', r"is not JSON: .*invalid start byte"),
        (b'{"a": 1}', "expected an array at the top, got dict"),
        (b"7", "expected an array at the top, got int"),
        (b"[" * 100_000, "is nested too deeply"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_what_is_wrong_is_said(file: Path, content: bytes, message: str, chunk: int) -> None:
    file.write_bytes(content)
    with pytest.raises(CatalogError, match=message) as raised:
        list(read_array(file, chunk=chunk))
    assert str(raised.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "expected an object at the top, got list"),
        (b'{"a": 1, 2: 3}', "record 1: Expecting property name"),
        (b'{"a" 1}', "record 0: Expecting ':' delimiter"),
        (b'{"a": }', "record 0: Expecting value"),
        (b'{"a": 1,}', "record 1: Expecting property name"),
    ],
)
def test_objects_that_are_wrong(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(CatalogError, match=message):
        list(read_object(file))


def test_a_broken_record_is_found_without_reading_on(file: Path) -> None:
    """The rest of a file of gigabytes could not make the record right."""
    file.write_text('[{"a": 1}, {"a": 2 "b": 3}, ' + '{"c": 4}, ' * 20_000 + "1]", encoding="utf-8")
    seen: list[int] = []
    with pytest.raises(CatalogError, match="record 1"):
        list(read_array(file, on_read=seen.append, chunk=100))
    assert seen
    assert max(seen) < file.stat().st_size / 10

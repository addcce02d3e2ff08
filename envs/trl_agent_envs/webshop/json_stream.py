"""JSON files of any size, read one record at a time with the standard library's decoder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from .product import CatalogError

OnRead = Callable[[int], None]
"""Called with the bytes read so far."""

_CHUNK = 1 << 20
_LONGEST_CUT = 16
"""Where a chunk ends in a literal, a number or an escape, the decoder stops at most so many characters before."""

_DECODER = json.JSONDecoder()


def read_array(file: Path, on_read: OnRead | None = None, chunk: int = _CHUNK) -> Iterator[Any]:
    """Yield the elements of the array that the file holds, in constant memory.

    Args:
        chunk: characters to read at a time.

    Raises:
        CatalogError: the file is not JSON (the record and the character are named) or holds no array.
    """
    return _read(file, "[", on_read, chunk)


def read_object(file: Path, on_read: OnRead | None = None, chunk: int = _CHUNK) -> Iterator[tuple[str, Any]]:
    """Yield the (key, value) pairs of the object that the file holds; otherwise as `read_array`."""
    return _read(file, "{", on_read, chunk)


def _read(file: Path, opening: str, on_read: OnRead | None, chunk: int) -> Iterator[Any]:
    with file.open("rb") as raw:
        encoding = json.detect_encoding(raw.read(4))
    number = -1  # before the first record
    with file.open(encoding=encoding, errors="surrogatepass", newline="") as stream:
        window = _Window(stream, chunk, on_read)
        try:
            _open(window, file, opening)
            number = 0
            for element in _elements(window, opening):
                yield element
                number += 1
        except json.JSONDecodeError as error:
            place = f"(char {window.passed + error.pos})"
            raise CatalogError(f"{file}: is not JSON: {_at(number)}{error.msg} {place}") from error
        except UnicodeDecodeError as error:
            raise CatalogError(f"{file}: is not JSON: {_at(number)}{error}") from error
        except RecursionError as error:
            raise CatalogError(f"{file}: {_at(number)}is nested too deeply") from error


def _at(number: int) -> str:
    return f"record {number}: " if number >= 0 else ""


def _open(window: _Window, file: Path, opening: str) -> None:
    if window.peek() == opening:
        window.at += 1
        return
    found = type(window.value()).__name__
    expected = "an array" if opening == "[" else "an object"
    raise CatalogError(f"{file}: expected {expected} at the top, got {found}")


def _elements(window: _Window, opening: str) -> Iterator[Any]:
    closing = "]" if opening == "[" else "}"
    if window.peek() == closing:
        window.at += 1
    else:
        while True:
            yield window.value() if opening == "[" else _pair(window)
            separator = window.peek()
            if separator == ",":
                window.at += 1
            elif separator == closing:
                window.at += 1
                break
            else:
                raise json.JSONDecodeError("Expecting ',' delimiter", window.text, window.at)
    if window.peek():
        raise json.JSONDecodeError("Extra data", window.text, window.at)


def _pair(window: _Window) -> tuple[str, Any]:
    if window.peek() != '"':
        raise json.JSONDecodeError(
            "Expecting property name enclosed in double quotes", window.text, window.at
        )
    key = window.value()
    if window.peek() != ":":
        raise json.JSONDecodeError("Expecting ':' delimiter", window.text, window.at)
    window.at += 1
    return key, window.value()


class _Window:
    """The part of the text that is in memory, and the place in it that is read next.

    passed: characters of the file before the window.
    """

    def __init__(self, stream: TextIO, chunk: int, on_read: OnRead | None) -> None:
        self._stream, self._chunk, self._on_read = stream, chunk, on_read
        self._ended = False
        self.text, self.at, self.passed = "", 0, 0

    def _more(self) -> None:
        # a record that does not fit is read in growing pieces, so that it costs linear time
        rest = self.text[self.at :]
        new = self._stream.read(max(self._chunk, len(rest)))
        self.passed += self.at
        self.text, self.at = rest + new, 0
        self._ended = not new
        if self._on_read is not None:
            self._on_read(self._stream.buffer.tell())

    def peek(self) -> str:
        """Return the next character that is not white space, "" at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \t\n\r":
                self.at += 1
            if self.at < len(self.text) or self._ended:
                return self.text[self.at : self.at + 1]
            self._more()

    def value(self) -> Any:
        """Return the next value, of any size."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos >= len(self.text) - _LONGEST_CUT
                if self._ended or not cut:
                    raise
            else:
                if end <= len(self.text) - _LONGEST_CUT or self._ended:  # else a number may go on
                    self.at = end
                    return value
            self._more()

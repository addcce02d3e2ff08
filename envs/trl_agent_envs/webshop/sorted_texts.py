"""SortedTexts: millions of texts in order in one block of bytes, found by bisection, never as Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class SortedTexts:
    """Distinct texts in the order of their code points.

    Args:
        block: the texts one after the other, in UTF-8 (lone surrogates pass).
        offsets: where each begins, and where the last ends; ``[n + 1]``.
    """

    def __init__(self, block: bytes | memoryview, offsets: NDArray[np.int64]) -> None:
        self._block, self._offsets = block, offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, place: int) -> str:
        start, end = self._offsets[place : place + 2].tolist()
        return str(self._block[start:end], "utf-8", "surrogatepass")

    def find(self, text: str) -> int | None:
        """Return the place of `text`, None if it is not there."""
        wanted = encode(text)
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            start, end = self._offsets[middle : middle + 2].tolist()
            found = bytes(self._block[start:end])
            if found == wanted:
                return middle
            # UTF-8 keeps the order of the code points
            if found < wanted:
                low = middle + 1
            else:
                high = middle
        return None


def encode(text: str) -> bytes:
    """Return the text in UTF-8; what JSON can hold passes, also halves of surrogate pairs."""
    return text.encode("utf-8", "surrogatepass")


def packed(texts: Iterable[str]) -> tuple[bytes, NDArray[np.int64]]:
    """Return the block and the offsets of texts that are in order."""
    pieces = [encode(text) for text in texts]
    return b"".join(pieces), offsets_of([len(piece) for piece in pieces])


def offsets_of(sizes: Sequence[int] | NDArray[np.signedinteger]) -> NDArray[np.int64]:
    """Return where pieces of these sizes begin when they lie one after the other, and where the last ends."""
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))

"""The shop's search: BM25 with Lucene's arithmetic, over postings in memory or mapped from the disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .postings import Postings, PostingsBuilder, stored_length
from .tokens import tokenize

__all__ = ["SearchIndex", "stored_length", "top"]

_BLOCK = 512
"""Scores are looked through in blocks of this many to find the best ones."""


class Vocabulary(Protocol):
    """The known terms."""

    def find(self, text: str, /) -> int | None:
        """Return the number of a term, None if no document has it."""


class SearchIndex:
    """Ranks documents for bag-of-words queries.

    A term adds ``idf * f / (f + k1 * (1 - b + b * L / avgdl))`` with ``idf = ln(1 + (N - df + .5) / (df +
    .5))``; L is the document length as Lucene stores it in one byte, avgdl the exact mean length. A repeated
    query word counts again; equal scores are ordered by id.

    Args:
        ids: document ids; results are indices into this sequence.
        texts: the documents.

    Source: Robertson & Zaragoza (2009); Lucene 8 `BM25Similarity`, `SmallFloat.intToByte4`.
    """

    def __init__(self, ids: Sequence[str], texts: Sequence[str]) -> None:
        if len(ids) != len(texts) or not ids:
            raise ValueError(f"need as many ids as texts and at least one, got {len(ids)} and {len(texts)}")
        builder = PostingsBuilder()
        for text in texts:
            builder.add(text)
        # documents are numbered in the order of their ids, so that the first of equal scores is the original's
        order = np.asarray(sorted(range(len(ids)), key=ids.__getitem__))
        terms, postings = builder.build(order)
        self._set(_Terms(terms), postings, order, builder.mean_length)

    @classmethod
    def opened(
        cls, vocabulary: Vocabulary, postings: Postings, order: NDArray[np.integer], mean_length: float
    ) -> SearchIndex:
        """Return the index over arrays that exist already. `order`: document number -> index into the ids."""
        index = cls.__new__(cls)
        index._set(vocabulary, postings, order, mean_length)
        return index

    def _set(
        self, vocabulary: Vocabulary, postings: Postings, order: NDArray[np.integer], mean_length: float
    ) -> None:
        self._vocabulary, self._postings, self._order = vocabulary, postings, order
        self.mean_length = mean_length

    def search(self, query: str, k: int = 50) -> list[tuple[int, float]]:
        """Return up to `k` (document index, score) pairs with a score above 0, best first."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        find = self._vocabulary.find
        terms = [term for token in tokenize(query) if (term := find(token)) is not None]
        if not terms:
            return []
        scores = self._scores(terms)
        best = top(scores, k)
        return list(zip(self._order[best].tolist(), scores[best].tolist()))

    def _scores(self, terms: list[int]) -> NDArray[np.float32]:
        postings = self._postings
        # room for whole blocks; what lies behind the last document stays 0
        scores = np.zeros(-(-postings.num_docs // _BLOCK) * _BLOCK, np.float32)
        for term in terms:
            start, end = postings.offsets[term : term + 2].tolist()
            np.add.at(scores, postings.docs[start:end], postings.scores[start:end])
        return scores


def top(scores: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Return the places of the `k` largest scores above 0, largest first, the first place of equal ones first.

    Args:
        scores: not negative; a whole number of blocks.
    """
    best = scores.reshape(-1, _BLOCK).max(axis=1)
    bound = np.float32(0)
    if len(best) > k:
        # k blocks have a score as high as this, so nothing below is among the best k
        bound = np.partition(best, len(best) - k)[len(best) - k]
    found = np.flatnonzero(scores >= bound if bound > 0 else scores)
    if len(found) > k:
        values = scores[found]
        last = np.partition(values, len(found) - k)[len(found) - k]
        above = found[values > last]
        found = np.concatenate((above, found[values == last][: k - len(above)]))
    return found[np.argsort(-scores[found], kind="stable")]


class _Terms:
    """A vocabulary in memory."""

    def __init__(self, terms: list[str]) -> None:
        self._numbers = {term: number for number, term in enumerate(terms)}

    def find(self, text: str, /) -> int | None:
        return self._numbers.get(text)

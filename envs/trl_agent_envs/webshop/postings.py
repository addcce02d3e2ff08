"""Postings: which documents have which search term, and what that adds to their score, as arrays by term."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .sorted_texts import offsets_of
from .tokens import tokenize

K1 = 0.9
B = 0.4
"""Anserini's default BM25 parameters."""

Allocate = Callable[[str, Any, int], NDArray[Any]]
"""(name, dtype, length) -> an empty array, in memory or on the disk."""

_DOCUMENTS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Postings:
    """Documents and scores by term.

    offsets: term t has the entries ``offsets[t]`` to ``offsets[t + 1]``. docs: document numbers, ascending
    within a term. scores: what the term adds to the document's score.
    """

    num_docs: int
    offsets: NDArray[np.int64]
    docs: NDArray[np.int32]
    scores: NDArray[np.float32]


class PostingsBuilder:
    """Takes documents one at a time, and keeps of each its terms and how often it has them (8 bytes a term)."""

    def __init__(self) -> None:
        self._ids: defaultdict[str, int] = defaultdict()
        self._ids.default_factory = self._ids.__len__
        self._terms, self._counts = array("i"), array("i")
        self._sizes, self._lengths = array("i"), array("i")

    def add(self, text: str) -> None:
        """Take the next document."""
        counts = Counter(tokenize(text))
        ids = self._ids
        self._terms.extend([ids[term] for term in counts])
        self._counts.extend(counts.values())
        self._sizes.append(len(counts))
        self._lengths.append(counts.total())

    @property
    def mean_length(self) -> float:
        return sum(self._lengths) / len(self._lengths)

    def build(self, order: NDArray[np.int64], allocate: Allocate | None = None) -> tuple[list[str], Postings]:
        """Return the terms in order, and their postings.

        Args:
            order: the place (in the order they were added) of each document; its index there is its number.
            allocate: makes the two large arrays, "docs" and "scores"; None: in memory.
        """
        terms = sorted(self._ids)
        rank = np.empty(len(terms), np.int32)
        for number, term in enumerate(terms):
            rank[self._ids[term]] = number
        own_terms, counts, sizes = map(np.asarray, (self._terms, self._counts, self._sizes))
        df = np.zeros(len(terms), np.int64)
        for start in range(0, len(own_terms), 1 << 22):
            df += np.bincount(rank[own_terms[start : start + (1 << 22)]], minlength=len(terms))
        offsets = offsets_of(df)
        make = allocate or _in_memory
        docs: NDArray[np.int32] = make("docs", np.int32, int(offsets[-1]))
        scores: NDArray[np.float32] = make("scores", np.float32, int(offsets[-1]))
        idf = np.log(1 + (len(order) - df + 0.5) / (df + 0.5)).astype(np.float32)
        norm_inverse = self._norm_inverse()
        begins, following = offsets_of(sizes)[:-1], offsets[:-1].copy()
        for first in range(0, len(order), _DOCUMENTS_AT_ONCE):
            places = order[first : first + _DOCUMENTS_AT_ONCE]
            own = sizes[places].astype(np.int64)
            entries = np.repeat(begins[places] - offsets_of(own)[:-1], own) + np.arange(int(own.sum()))
            term = rank[own_terms[entries]]
            by_term = np.argsort(term, kind="stable")
            term, entries = term[by_term], entries[by_term]
            owner = np.repeat(np.arange(len(places), dtype=np.int32), own)[by_term]
            found = np.bincount(term, minlength=len(terms))
            target = np.arange(len(term)) + np.repeat(following - offsets_of(found)[:-1], found)
            following += found
            docs[target] = owner + np.int32(first)
            # Lucene computes in single precision, so the same ties arise only in single precision
            weight, count = idf[term], counts[entries].astype(np.float32)
            scores[target] = weight - weight / (np.float32(1) + count * norm_inverse[places][owner])
        return terms, Postings(len(order), offsets, docs, scores)

    def _norm_inverse(self) -> NDArray[np.float32]:
        lengths = np.asarray([stored_length(length) for length in self._lengths], dtype=np.float32)
        one, k1, b = np.float32(1), np.float32(K1), np.float32(B)
        inverse: NDArray[np.float32] = one / (
            k1 * ((one - b) + b * lengths / np.float32(self.mean_length or 1))
        )
        return inverse


def _in_memory(name: str, dtype: Any, length: int) -> NDArray[Any]:
    return np.empty(length, dtype)


def stored_length(length: int) -> int:
    """Return `length` as Lucene's one-byte norm keeps it: exact below 40, then four leading bits above 24."""
    if length < 40:
        return length
    shift = (length - 24).bit_length() - 4
    return 24 + ((length - 24) >> shift << shift)

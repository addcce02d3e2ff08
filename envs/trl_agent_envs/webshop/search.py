"""The shop's search: BM25 with Lucene's arithmetic on a bm25s index of our own weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .tokens import tokenize

K1 = 0.9
B = 0.4
"""Anserini's default BM25 parameters."""


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
        # documents are kept in the order of their ids, so that a stable sort breaks ties as the original does
        order = sorted(range(len(ids)), key=ids.__getitem__)
        self._order = np.asarray(order)
        counts = [Counter(tokenize(texts[i])) for i in order]
        self.vocabulary: dict[str, int] = {}
        for count in counts:
            for term in count:
                self.vocabulary.setdefault(term, len(self.vocabulary))
        self.mean_length = sum(map(Counter.total, counts)) / len(counts)
        self._retriever = self._build(counts)

    def _build(self, counts: list[Counter[str]]) -> Any:
        import bm25s

        sizes = np.fromiter((len(count) for count in counts), np.int64, len(counts))
        docs = np.repeat(np.arange(len(counts), dtype=np.int32), sizes)
        total = int(sizes.sum())
        terms = np.fromiter((self.vocabulary[t] for count in counts for t in count), np.int32, total)
        freqs = np.fromiter((f for count in counts for f in count.values()), np.float32, total)
        lengths = np.asarray([stored_length(count.total()) for count in counts], dtype=np.float32)
        df = np.bincount(terms, minlength=len(self.vocabulary))
        idf = np.log(1 + (len(counts) - df + 0.5) / (df + 0.5)).astype(np.float32)
        # Lucene computes in single precision, so the same ties arise only in single precision
        one = np.float32(1)
        norm_inverse = one / (
            np.float32(K1) * ((one - np.float32(B)) + np.float32(B) * lengths / np.float32(self.mean_length))
        )
        weights = idf[terms]
        scores = weights - weights / (one + freqs * norm_inverse[docs])
        by_term = np.argsort(terms, kind="stable")
        retriever = bm25s.BM25(dtype="float32", int_dtype="int32", backend="numpy")
        retriever.scores = {
            "data": scores[by_term],
            "indices": docs[by_term],
            "indptr": np.concatenate(([0], np.cumsum(df))).astype(np.int64),
            "num_docs": len(counts),
        }
        retriever.nonoccurrence_array = None  # what its own indexing sets for the "lucene" method
        return retriever

    def search(self, query: str, k: int = 50) -> list[tuple[int, float]]:
        """Return up to `k` (document index, score) pairs with a score above 0, best first."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        known = self.vocabulary
        terms = [known[token] for token in tokenize(query) if token in known]
        if not terms:
            return []
        scores: NDArray[np.float32] = self._retriever.get_scores_from_ids(terms)
        found = np.flatnonzero(scores)
        if len(found) > 4 * k:
            # keep every document that ties with the k-th, then sort the few that are left
            bound = np.partition(scores[found], len(found) - k)[len(found) - k]
            found = found[scores[found] >= bound]
        best = found[np.argsort(-scores[found], kind="stable")[:k]]
        return list(zip(self._order[best].tolist(), scores[best].tolist()))


def stored_length(length: int) -> int:
    """Return `length` as Lucene's one-byte norm keeps it: exact below 40, then four leading bits above 24."""
    if length < 40:
        return length
    shift = (length - 24).bit_length() - 4
    return 24 + ((length - 24) >> shift << shift)

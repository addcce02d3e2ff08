"""Shop: one catalogue with its search, goals, prices and rewards, loaded once a process and shared."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from .catalog import Catalog, Product
from .compat import Compat
from .goals import Goal, build_goals, draw_prices
from .nouns import title_nouns
from .pages import PageTexts
from .raw import RawCatalog
from .reward import RewardInfo, score_purchase
from .search import SearchIndex

MAX_RESULTS = 50
"""A search shows at most this many products."""

_CACHED_QUERIES = 4096
_CACHED_QUERY_LENGTH = 300
_CACHED_TITLES = 16384

_lock = threading.RLock()
_Source = tuple[object, ...]
_catalogs: dict[_Source, Catalog] = {}
_indexes: dict[_Source, SearchIndex] = {}
_shops: dict[tuple[object, ...], Shop] = {}


class SpecialSearchError(ValueError):
    """A search for `<a> ...` or `<c>` in "original" mode, where the original program raises."""


class Shop:
    """Everything of a shop that does not change while people buy.

    Use `Shop.load`; it shares catalogue and index among all shops of the process.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        compat: str | Compat = "strict",
        price_seed: int = 0,
        title_nouns_source: str | Path | None = None,
        index: SearchIndex | None = None,
    ) -> None:
        self.catalog = catalog
        self.compat = Compat.named(compat)
        self.index = index if index is not None else _build_index(catalog)
        self._rng_state = self._draw_prices(price_seed)
        self.texts = PageTexts()
        self._goals: dict[str, tuple[Goal, ...]] = {}
        tagger = title_nouns(title_nouns_source)
        self._nouns = lru_cache(maxsize=_CACHED_TITLES)(lambda asin: tagger(catalog[asin]))
        self._ranked = lru_cache(maxsize=_CACHED_QUERIES)(self._rank)

    def _draw_prices(self, seed: int) -> object:
        rng = random.Random(seed)
        self.prices = draw_prices(self.catalog, rng)
        return rng.getstate()

    @classmethod
    def load(
        cls,
        data_dir: str | Path | RawCatalog | None = None,
        compat: str | Compat = "strict",
        price_seed: int = 0,
        title_nouns: str | Path | None = None,
    ) -> Shop:
        """Return the shop for a catalogue; the same arguments give the same object.

        Args:
            data_dir: folder in the original's format, or None for the embedded catalogue.
            compat: "strict", or "original" for the original's behaviour with its faults.
            price_seed: draws the prices of products with a price range, and the goals' price limits.
            title_nouns: see `nouns.title_nouns`.

        Raises:
            CatalogError: a file is missing or malformed (file, record and key are named).
        """
        switches = Compat.named(compat)
        if isinstance(data_dir, RawCatalog):
            catalog = Catalog.load(data_dir)
            return cls(catalog, compat=switches, price_seed=price_seed, title_nouns_source=title_nouns)
        key = _source_key(data_dir)
        with _lock:
            shop_key = (key, switches, price_seed, _source_key(title_nouns))
            if shop_key not in _shops:
                if key not in _catalogs:
                    _catalogs[key] = Catalog.load(_embedded() if data_dir is None else data_dir)
                    _indexes[key] = _build_index(_catalogs[key])
                _shops[shop_key] = cls(
                    _catalogs[key],
                    compat=switches,
                    price_seed=price_seed,
                    title_nouns_source=title_nouns,
                    index=_indexes[key],
                )
            return _shops[shop_key]

    def search(self, query: str, k: int = MAX_RESULTS) -> list[tuple[str, float]]:
        """Return up to `k` (asin, score) pairs for `query`, best first."""
        products = self.catalog.products
        return [(products[i].asin, score) for i, score in self.index.search(query, k)]

    def goals(self, goal_set: str = "synthetic") -> tuple[Goal, ...]:
        """Return the goals of "synthetic" or "human", placed by goal id."""
        with _lock:
            if goal_set not in self._goals:
                rng = random.Random()
                rng.setstate(self._rng_state)  # type: ignore[arg-type]
                self._goals[goal_set] = tuple(build_goals(goal_set, self.catalog, self.prices, rng))
            return self._goals[goal_set]

    def reward(
        self, goal: Goal, asin: str, options: Mapping[str, str], price: float | None = None
    ) -> RewardInfo:
        """Score the purchase of `asin` with `options`; `price` is the charged one unless given (dollars)."""
        return score_purchase(
            goal,
            self.catalog[goal.asin],
            self.catalog[asin],
            options,
            self.prices[asin] if price is None else price,
            self._nouns(goal.asin),
            self._nouns(asin),
            exact_option_matches=self.compat.exact_option_matches,
        )

    def find(self, keywords: Sequence[str]) -> tuple[Product, ...]:
        """Return what a search for these words lists.

        A first word `<r>`, `<a>`, `<c>` or `<q>` lists products at random, or by attribute, department, or
        query.

        Raises:
            SpecialSearchError: where the original raises and `compat` asks for that.
        """
        if keywords[0] in ("<r>", "<a>", "<c>", "<q>"):
            return self._special(keywords)
        text = " ".join(keywords)
        return self._ranked(text) if len(text) <= _CACHED_QUERY_LENGTH else self._rank(text)

    def _rank(self, text: str) -> tuple[Product, ...]:
        products = self.catalog.products
        return tuple(products[i] for i, _ in self.index.search(text, MAX_RESULTS))

    def _special(self, keywords: Sequence[str]) -> tuple[Product, ...]:
        products, rest = self.catalog.products, " ".join(keywords[1:]).strip()
        if keywords[0] == "<r>":
            # the same words list the same products, so that an episode repeats and paging makes sense
            rng = random.Random(" ".join(keywords))
            return tuple(rng.sample(products, min(MAX_RESULTS, len(products))))
        if keywords[0] == "<q>":
            return tuple(p for p in products if p.query == rest)
        if keywords[0] == "<c>":
            if len(keywords) > 1:
                return tuple(p for p in products if p.category == keywords[1].strip())
            if self.compat.special_searches:
                return ()
        elif self.compat.special_searches:
            return tuple(p for p in products if rest in p.attributes)
        raise SpecialSearchError(f"The search for {keywords[0]!r} failed.")


def _source_key(path: str | Path | None) -> _Source:
    """Return what tells one data source from another: path, and size and time of its files."""
    if path is None:
        return ()
    place = Path(path)
    files = (
        sorted(place.glob("items_*.json")) if place.is_dir() else [place, *place.parent.glob("items_*.json")]
    )
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return (str(place.resolve()), *((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


def _build_index(catalog: Catalog) -> SearchIndex:
    return SearchIndex([p.asin for p in catalog], [p.search_text for p in catalog])


def _embedded() -> RawCatalog:
    from .synthetic import generate

    return generate()

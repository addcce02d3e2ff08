"""Shop: one catalogue with its search, goals, prices and rewards, loaded once a process and shared."""

from __future__ import annotations

import logging
import random
import threading
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .catalog import Catalog, Listing, Product
from .compat import Compat
from .goals import Goal, Goals, build_goals, check_goal_set, draw_prices, no_goals
from .nouns import title_nouns
from .pages import PageTexts
from .raw import RawCatalog
from .reward import RewardInfo, score_purchase
from .search import SearchIndex
from .sources import open_source
from .store import Store
from .store_cache import MAX_SOURCE_BYTES, cached_store
from .store_format import MANIFEST, StoreError, is_store

MAX_RESULTS = 50
"""A search shows at most this many products."""

_CACHED_QUERIES = 4096
_CACHED_QUERY_LENGTH = 300
_CACHED_TITLES = 16384

_log = logging.getLogger(__name__)
_lock = threading.RLock()
_Source = tuple[object, ...]
_worlds: dict[_Source, _World] = {}
_shops: dict[tuple[object, ...], Shop] = {}


class SpecialSearchError(ValueError):
    """A search for `<a> ...` or `<c>` in "original" mode, where the original program raises."""


@dataclass(frozen=True)
class _World:
    """What all shops of a source share. stored: the built catalogue it is read from, if it is."""

    catalog: Catalog
    index: SearchIndex
    stored: Store | None = None


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
        stored: Store | None = None,
    ) -> None:
        self.catalog = catalog
        self.compat = Compat.named(compat)
        self.index = index if index is not None else _build_index(catalog)
        self._price_seed = price_seed
        self._stored = stored if stored is not None and stored.price_seed == price_seed else None
        self.prices: Mapping[str, float] = (
            draw_prices(catalog, random.Random(price_seed)) if self._stored is None else self._stored.prices
        )
        self.texts = PageTexts()
        self._goals: dict[str, Goals] = {}
        tagger = title_nouns(title_nouns_source)
        self._nouns = lru_cache(maxsize=_CACHED_TITLES)(lambda asin: tagger(catalog[asin]))
        self._ranked = lru_cache(maxsize=_CACHED_QUERIES)(self._rank)

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
            data_dir: folder in the original's format, or one that `trl-agent webshop index` has built; None is
                the embedded catalogue. What is not built yet is built in the user's cache (see `store_cache`).
            compat: "strict", or "original" for the original's behaviour with its faults.
            price_seed: draws the prices of products with a price range, and the goals' price limits.
            title_nouns: see `nouns.title_nouns`.

        Raises:
            CatalogError: a file is missing or malformed (file, record and key are named); a built catalogue is
                damaged, or of another version or price seed.
        """
        switches = Compat.named(compat)
        if isinstance(data_dir, RawCatalog):
            catalog = Catalog.load(data_dir)
            return cls(catalog, compat=switches, price_seed=price_seed, title_nouns_source=title_nouns)
        key = _source_key(data_dir)
        with _lock:
            shop_key = (key, switches, price_seed, _source_key(title_nouns))
            if shop_key not in _shops:
                if key not in _worlds:
                    _worlds[key] = _open(data_dir, key)
                world = _worlds[key]
                if data_dir is not None and world.stored is not None and is_store(Path(data_dir)):
                    _check_seed(world.stored, price_seed)
                _shops[shop_key] = cls(
                    world.catalog,
                    compat=switches,
                    price_seed=price_seed,
                    title_nouns_source=title_nouns,
                    index=world.index,
                    stored=world.stored,
                )
            return _shops[shop_key]

    def search(self, query: str, k: int = MAX_RESULTS) -> list[tuple[str, float]]:
        """Return up to `k` (asin, score) pairs for `query`, best first."""
        products = self.catalog.products
        return [(products[i].asin, score) for i, score in self.index.search(query, k)]

    def goals(self, goal_set: str = "synthetic") -> Goals:
        """Return the goals of "synthetic" or "human", placed by goal id.

        Raises:
            ValueError: an unknown set, or one that the catalogue has no goals of.
        """
        with _lock:
            if goal_set not in self._goals:
                self._goals[goal_set] = self._find_goals(goal_set)
            return self._goals[goal_set]

    def _find_goals(self, goal_set: str) -> Goals:
        check_goal_set(goal_set)
        if self._stored is None:
            rng = random.Random(self._price_seed)
            draw_prices(self.catalog, rng)  # the limits are the numbers that follow the prices
            return build_goals(goal_set, self.catalog, self.prices, rng)
        if goal_set not in self._stored.tables:
            raise no_goals(goal_set, self.catalog)
        return Goals(goal_set, self.catalog, self._stored.tables[goal_set])

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

    def find(self, keywords: Sequence[str]) -> Listing | tuple[Product, ...]:
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

    def _rank(self, text: str) -> Listing:
        places = array("i", [place for place, _ in self.index.search(text, MAX_RESULTS)])
        return Listing(self.catalog.products, places)

    def _special(self, keywords: Sequence[str]) -> Listing | tuple[Product, ...]:
        catalog, rest = self.catalog, " ".join(keywords[1:]).strip()
        if keywords[0] == "<r>":
            # the same words list the same products, so that an episode repeats and paging makes sense
            rng = random.Random(" ".join(keywords))
            return tuple(rng.sample(catalog.products, min(MAX_RESULTS, len(catalog))))
        if keywords[0] == "<q>":
            return catalog.labelled("query", rest)
        if keywords[0] == "<c>":
            if len(keywords) > 1:
                return catalog.labelled("category", keywords[1].strip())
            if self.compat.special_searches:
                return ()
        elif self.compat.special_searches:
            return catalog.labelled("attribute", rest)
        raise SpecialSearchError(f"The search for {keywords[0]!r} failed.")


def _source_key(path: str | Path | None) -> _Source:
    """Return what tells one data source from another: path, and size and time of its files."""
    if path is None:
        return ()
    place = Path(path)
    if is_store(place):
        files = [place / MANIFEST]
    elif place.is_dir():
        files = sorted(place.glob("items_*.json"))
    else:
        files = [place, *sorted(place.parent.glob("items_*.json"))]
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return (str(place.resolve()), *((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


def _open(data_dir: str | Path | None, key: _Source) -> _World:
    """Open a built catalogue, the cached build of a source, or the source itself."""
    place = None if data_dir is None else Path(data_dir)
    stored: Store | None = None
    if place is None:
        stored = cached_store("", key, None)
    elif is_store(place):
        stored = Store(place)
    elif open_source(place).size <= MAX_SOURCE_BYTES:
        stored = cached_store(str(key[0]), key, place)
    else:
        _log.warning(
            "%s is large: it takes minutes and many gigabytes to load. Build it once with "
            "`trl-agent webshop index %s --out DIR`, then pass DIR.", place, place,
        )  # fmt: skip
    if stored is not None:
        return _World(stored.catalog, stored.index, stored)
    catalog = Catalog.load(_embedded() if place is None else place)
    return _World(catalog, _build_index(catalog))


def _check_seed(stored: Store, price_seed: int) -> None:
    if stored.price_seed != price_seed:
        raise StoreError(
            f"{stored.folder}: was built with price_seed {stored.price_seed}, asked for is {price_seed}; pass "
            f"price_seed={stored.price_seed}, or build another: "
            f"trl-agent webshop index DATA --out DIR --price_seed {price_seed}"
        )


def _build_index(catalog: Catalog) -> SearchIndex:
    return SearchIndex([p.asin for p in catalog], [p.search_text for p in catalog])


def _embedded() -> RawCatalog:
    from .synthetic import generate

    return generate()

"""The score of a purchase: how well product, options and price fit a goal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rapidfuzz.fuzz import token_set_ratio

from trl_agent_envs.core import SUCCESS_SCORE

from .catalog import Product
from .goals import Goal

FUZZY_THRESHOLD = 85
"""Two texts match when their token set ratio, rounded to a whole number, is above this."""

_COLOR_NAMES = (
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown "
    "burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac "
    "copper coral cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold granite "
    "grape graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon leopard light "
    "lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard natural navy "
    "nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire seashell "
    "silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut "
    "wheat white wine yellow"
)
COLORS = tuple(_COLOR_NAMES.split())
"""The colour names the original reduces an option to; the first in this order counts."""

_LATIN_1 = dict.fromkeys(range(128, 256))
_NOT_WORD = re.compile(r"\W")
_COLOR_WORD = {color: re.compile(rf"\b{color}\b") for color in COLORS}


@dataclass(frozen=True, slots=True)
class RewardInfo:
    """Score and parts of a purchase.

    total: in [0, 1]; 1 is success. r_type * (matched attributes + matched options + r_price) / (all of them).
    r_type: 1, 0.5, 0.1 or 0: is it the kind of product asked for.
    r_att, r_option: share of the wanted attributes and options that were met (r_option None: none wanted).
    r_price: the price is within the limit.
    title_score: share of the wanted title's nouns that the bought title has.
    w_att, w_option, w_price: what each share weighs in the total.
    """

    total: float
    r_type: float
    r_att: float
    r_option: float | None
    r_price: bool
    title_score: float
    query_match: bool
    category_match: bool
    w_att: float
    w_option: float | None
    w_price: float

    @property
    def success(self) -> bool:
        return self.total >= SUCCESS_SCORE


def score_purchase(
    goal: Goal,
    wanted: Product,
    bought: Product,
    options: Mapping[str, str],
    price: float,
    wanted_nouns: tuple[str, ...],
    bought_nouns: tuple[str, ...],
    *,
    exact_option_matches: bool,
) -> RewardInfo:
    """Score buying `bought` with the chosen `options` at `price` (dollars) when `goal` asks for `wanted`.

    Source: Yao et al. (2022), "WebShop", section 3 and the published program.
    """
    query_match = bought.query == wanted.query
    category_match = len(_categories(bought) & _categories(wanted)) >= 2
    title = title_score(wanted_nouns, bought_nouns)
    r_type = type_reward(query_match, category_match, title)
    matched_attributes = sum(has_attribute(bought, attribute) for attribute in goal.attributes)
    matched_options = count_options(goal.options, options, exact_option_matches)
    within = price <= goal.price_upper
    parts = len(goal.attributes) + len(goal.options) + 1
    return RewardInfo(
        total=(matched_attributes + matched_options + within) / parts * r_type,
        r_type=r_type,
        r_att=matched_attributes / len(goal.attributes),
        r_option=matched_options / len(goal.options) if goal.options else None,
        r_price=within,
        title_score=title,
        query_match=query_match,
        category_match=category_match,
        w_att=len(goal.attributes) / parts,
        w_option=len(goal.options) / parts if goal.options else None,
        w_price=1 / parts,
    )


@lru_cache(maxsize=4096)
def _category_set(path: str) -> frozenset[str]:
    return frozenset(part.strip() for part in path.split("›"))


def _categories(product: Product) -> frozenset[str]:
    return _category_set(product.product_category)


def title_score(wanted_nouns: tuple[str, ...], bought_nouns: tuple[str, ...]) -> float:
    """Return the share of the wanted nouns (counted with repeats) that the bought title shares (without)."""
    if not wanted_nouns:
        return 0.2
    return len(set(wanted_nouns) & set(bought_nouns)) / len(wanted_nouns)


def type_reward(query_match: bool, category_match: bool, title: float) -> float:
    """Return 1 for the right kind of product, less the less alike the titles are."""
    if title == 0.0:
        return 0.0
    if title < 0.1:
        return 0.1
    return 1.0 if query_match or category_match or title > 0.2 else 0.5


def has_attribute(product: Product, attribute: str) -> bool:
    """Return whether the product lists something like `attribute`, or its texts contain it."""
    if any(fuzzy_match(own, attribute) for own in product.attributes):
        return True
    return (
        attribute in product.title.lower()
        or attribute in " ".join(product.bullet_points).lower()
        or attribute in product.description.lower()
    )


def count_options(wanted: dict[str, str] | tuple[str, ...], chosen: Mapping[str, str], exact: bool) -> int:
    """Return how many wanted options the chosen values meet (see `Compat.exact_option_matches`)."""
    color = color_word if exact else color_inside
    values = [color(value) for value in chosen.values()]
    pairs = wanted.items() if isinstance(wanted, dict) else ((None, value) for value in wanted)
    return sum(
        (exact and _same_option(name, value, chosen))
        or any(fuzzy_match(own, _as_compared(name, value, exact)) for own in values)
        for name, value in pairs
    )


def _same_option(name: str | None, value: str, chosen: Mapping[str, str]) -> bool:
    return value in chosen.values() if name is None else chosen.get(name) == value


def _as_compared(name: str | None, value: str, exact: bool) -> str:
    """Return a wanted option as the fuzzy comparison sees it: a synthetic one carries its type's name."""
    if name is None:
        return color_word(value) if exact else color_inside(value)
    # the original hands the pair to its colour reduction, which then tests the pair's elements, not their
    # letters
    for color in COLORS:
        if color in (name, value):
            return color
    return str((name, value))


@lru_cache(maxsize=16384)
def color_inside(value: str) -> str:
    """Return the first colour whose letters occur in `value`, else `value` (the original's rule)."""
    return next((color for color in COLORS if color in value), value)


@lru_cache(maxsize=16384)
def color_word(value: str) -> str:
    """Return the first colour that is a word of `value`, else `value`."""
    return next((color for color in COLORS if color in value and _COLOR_WORD[color].search(value)), value)


@lru_cache(maxsize=65536)
def fuzzy_match(first: str, second: str) -> bool:
    """Return whether two texts share their words, nearly (thefuzz's `token_set_ratio` above 85)."""
    a, b = _plain(first), _plain(second)
    # thefuzz rounds before it compares
    return bool(a and b) and round(token_set_ratio(a, b)) > FUZZY_THRESHOLD


def _plain(text: str) -> str:
    return _NOT_WORD.sub(" ", text.translate(_LATIN_1)).lower().strip()

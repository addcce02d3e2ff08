"""Demonstrator: a scripted shopper of mixed skill, as real ones are; where demonstrations come from.

Each episode draws a person: how much of the instruction goes into the query, whether results are compared or the
first one is taken, how reliably options are chosen, how curious the person is. `EXPERT` does everything right.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from .env import WebShopEnv


@dataclass(frozen=True)
class Person:
    """Habits of one shopper; every field is a probability.

    full_query: all the wanted attributes go into the query; some_query: one of them; else only the kind of product.
    names_options: the wanted options go into the query too.
    compares: opens the result that shows most of what is wanted, instead of the first one.
    pages_on: looks at the next page while the product wanted is not in sight (twice at most).
    chooses: clicks a wanted option, each time; mistakes: takes another value instead.
    reads: has a look at the description or features before buying.
    """

    full_query: float
    some_query: float
    names_options: float
    compares: float
    pages_on: float
    chooses: float
    mistakes: float
    reads: float


EXPERT = Person(
    full_query=1.0,
    some_query=0.0,
    names_options=1.0,
    compares=1.0,
    pages_on=1.0,
    chooses=1.0,
    mistakes=0.0,
    reads=0.0,
)
CROWD = Person(
    full_query=0.12,
    some_query=0.45,
    names_options=0.15,
    compares=0.35,
    pages_on=0.35,
    chooses=0.85,
    mistakes=0.08,
    reads=0.12,
)
"""The people whose sessions the recipes learn from: short queries, and two in three take the first result. A quarter
buys exactly what was asked for."""


class Demonstrator:
    """Chooses actions for a `WebShopEnv`, knowing its goal.

    Args:
        person: the habits. The default shopper is as good and as bad as `CROWD`.
        seed: with the episode number, fixes everything the shopper does.
    """

    def __init__(self, person: Person = CROWD, seed: int = 0) -> None:
        self.person = person
        self.seed = seed
        self.start_episode(0)

    def start_episode(self, episode: int) -> None:
        """Become a new person."""
        self._rng = random.Random(f"demonstrator/{self.seed}/{episode}")
        self._compares = self._flip(self.person.compares)
        self._pages_left = 2 if self._flip(self.person.pages_on) else 0
        self._reads = self._flip(self.person.reads)
        self._todo: list[str] | None = None

    def act(self, env: WebShopEnv) -> str:
        """Return the next action in the state the environment is in."""
        page = env.session.page
        if page.kind == "index":
            return f"search[{self._query(env)}]"
        if page.kind == "item":
            return self._on_item(env, env.session.clickables)
        if page.kind == "results" and page.products:
            return self._on_results(env, [product.asin for product in page.products])
        # nothing found: be more precise
        if page.kind == "results" and "< prev" not in env.session.clickables:
            return f"search[{env.shop.catalog[env.session.goal.asin].title.lower()}]"
        return "click[< prev]"

    def _flip(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _query(self, env: WebShopEnv) -> str:
        product = env.shop.catalog[env.session.goal.asin]
        draw = self._rng.random()
        if draw < self.person.full_query:
            words = list(env.session.goal.attributes)
        elif draw < self.person.full_query + self.person.some_query:
            words = [self._rng.choice(list(env.session.goal.attributes))]
        else:
            words = []
        if self._flip(self.person.names_options):
            words += _wanted_options(env)
        return " ".join([*words, product.query])

    def _on_results(self, env: WebShopEnv, results: list[str]) -> str:
        target = env.session.goal.asin
        if not self._compares:
            return f"click[{results[0]}]"
        if target in results:
            return f"click[{target}]"
        if self._pages_left:
            self._pages_left -= 1
            return "click[next >]"
        wanted = [attribute.lower() for attribute in env.session.goal.attributes]
        shown = [sum(a in env.shop.catalog[asin].title.lower() for a in wanted) for asin in results]
        return f"click[{results[shown.index(max(shown))]}]"

    def _on_item(self, env: WebShopEnv, clickables: Sequence[str]) -> str:
        if self._reads:
            self._reads = False
            return f"click[{self._rng.choice(('description', 'features'))}]"
        if self._todo is None:
            self._todo = self._choices(env, clickables)
        if self._todo:
            return f"click[{self._todo.pop(0)}]"
        return "click[buy now]"

    def _choices(self, env: WebShopEnv, clickables: Sequence[str]) -> list[str]:
        """The option values this person clicks on this product, in the order of the page."""
        wanted = _wanted_options(env)
        product = env.session.page.product
        assert product is not None  # an item page has one
        chosen = []
        for values in product.options.values():
            right = [v for v in values if v in wanted and v in clickables]
            if right and self._flip(self.person.mistakes):
                chosen.append(self._rng.choice([v for v in values if v in clickables]))
            elif right and self._flip(self.person.chooses):
                chosen.append(right[0])
        return chosen


def _wanted_options(env: WebShopEnv) -> list[str]:
    options = env.session.goal.options
    return list(options.values() if isinstance(options, dict) else options)

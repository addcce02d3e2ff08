"""What an expert who knows the wanted product does next."""

from __future__ import annotations

import re

from .catalog import Product
from .goals import Goal, without_price
from .pages import BACK_TO_SEARCH, BUY_NOW, NEXT, PREVIOUS, PRODUCTS_PER_PAGE, SUB_PAGES
from .session import Session, can_be_named
from .shop import Shop

_BUTTONS = frozenset((BACK_TO_SEARCH, PREVIOUS, NEXT, BUY_NOW, "search", *SUB_PAGES))


class Oracle:
    """Searches with the instruction if that lists the product, else with its title; then buys as asked."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    def action(self, session: Session) -> str | None:
        """Return the next action towards a full score, from whatever page the session is on."""
        page, goal = session.page, session.goal
        if page.kind == "done":
            return None
        if page.kind == "sub":
            return f"click[{PREVIOUS}]"
        if page.kind == "item" and page.product is not None:
            if page.product.asin != goal.asin:
                return f"click[{BACK_TO_SEARCH}]"
            return self._next_option(page.product, goal, dict(page.chosen or {}))
        if page.kind == "results":
            if any(product.asin == goal.asin for product in page.products):
                return f"click[{goal.asin.lower()}]"
            later = self._shop.find(session.keywords)[page.number * PRODUCTS_PER_PAGE :]
            if any(product.asin == goal.asin for product in later):
                return f"click[{NEXT}]"
        return f"search[{self.query(goal)}]"

    def query(self, goal: Goal) -> str:
        """Return the instruction if a search for it lists the product on the first page, else the title."""
        target = self._shop.catalog[goal.asin]
        wish = _searchable(without_price(goal.instruction))
        first = self._shop.find(wish.split(" "))[:PRODUCTS_PER_PAGE]
        return wish if any(product.asin == goal.asin for product in first) else _searchable(target.title)

    def _next_option(self, product: Product, goal: Goal, chosen: dict[str, str]) -> str:
        for name, value in self._wanted(product, goal).items():
            # a value that several types share can be clicked for one of them only
            if chosen.get(name) == value or value in chosen.values() or value in _BUTTONS:
                continue
            if can_be_named(value):
                return f"click[{value}]"
        return f"click[{BUY_NOW}]"

    def _wanted(self, product: Product, goal: Goal) -> dict[str, str]:
        if isinstance(goal.options, dict):
            return {
                name: value for name, value in goal.options.items() if value in product.options.get(name, ())
            }
        wanted: dict[str, str] = {}
        for value in goal.options:
            for name, values in product.options.items():
                if name not in wanted and (found := _closest(value, values)):
                    wanted[name] = found
                    break
        return wanted


def _closest(wanted: str, values: tuple[str, ...]) -> str | None:
    wanted = wanted.strip().replace("/", " | ").lower()
    return wanted if wanted in values else next((value for value in values if wanted in value), None)


def _searchable(text: str) -> str:
    # brackets end an action, and a first word in angle brackets is a command to the shop
    return " ".join(re.sub(r"[\[\]\n<>]", " ", text).lower().split())

"""A person on the original's site, as far as its log sees: every page that the server sends is a line.

Written after the description of the log's format, and apart from the package's own session: pages are states of
their own, moves are written out, and the browser keeps a history.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from trl_agent_envs.webshop import Goal, Shop

HOST = "http://3.83.245.205:3000"


@dataclass(frozen=True)
class Shown:
    """One page and everything its address holds."""

    page: str = "index"
    keywords: tuple[str, ...] = ()
    number: int = 1
    asin: str = ""
    options: tuple[tuple[str, str], ...] = ()
    sub_page: str = ""


class Person:
    """Moves as a browser allows them; `lines` is the log."""

    def __init__(self, shop: Shop, goal: Goal, session: str = "A1B2C3") -> None:
        self.shop, self.goal, self.session = shop, goal, session
        self.lines: list[dict[str, Any]] = []
        self.history: list[Shown] = []
        self.forward(Shown())

    @property
    def now(self) -> Shown:
        return self.history[-1]

    def forward(self, shown: Shown) -> None:
        """A link or a form: the server sends a page."""
        self.history.append(shown)
        self.log(shown)

    def browser_back(self, *, kept: bool = True) -> None:
        """The browser's own button: a page that it kept, or one that it asks for again."""
        self.history.pop()
        if not kept:
            self.log(self.now)

    def reload(self) -> None:
        self.log(self.now)

    def search(self, *words: str) -> None:
        assert self.now.page == "index"
        self.forward(Shown("search_results", words))

    def back_to_search(self) -> None:
        self.forward(Shown())

    def turn(self, by: int) -> None:
        assert self.now.page == "search_results"
        self.forward(replace(self.now, number=self.now.number + by))

    def listed(self) -> list[str]:
        found = [product.asin for product in self.shop.find(list(self.now.keywords))]
        return found[(self.now.number - 1) * 10 : self.now.number * 10]

    def open(self, asin: str) -> None:
        assert asin in self.listed()
        self.forward(replace(self.now, page="item_page", asin=asin))

    def choose(self, kind: str, value: str) -> None:
        assert self.now.page == "item_page"
        assert value in self.shop.catalog[self.now.asin].options[kind]
        self.forward(replace(self.now, options=tuple((dict(self.now.options) | {kind: value}).items())))

    def read(self, name: str) -> None:
        assert self.now.page == "item_page"
        self.forward(replace(self.now, page="item_sub_page", sub_page=name))

    def prev(self) -> None:
        """The page's own "< Prev" of an item or sub page."""
        if self.now.page == "item_sub_page":
            self.forward(replace(self.now, page="item_page", sub_page=""))
        else:
            self.forward(Shown("search_results", self.now.keywords, self.now.number))

    def buy(self) -> None:
        assert self.now.page == "item_page"
        self.forward(replace(self.now, page="done"))

    def log(self, shown: Shown) -> None:
        keywords, options = str(list(shown.keywords)), str(dict(shown.options))
        item = [shown.asin, keywords, shown.number]
        parts: list[Any] = {
            "index": [self.session],
            "search_results": ["search_results", self.session, keywords, shown.number],
            "item_page": ["item_page", self.session, *item, options],
            "item_sub_page": ["item_sub_page", self.session, *item, shown.sub_page, options],
            "done": ["done", self.session, shown.asin, options],
        }[shown.page]
        url = HOST + "/" + "/".join(quote(str(part), safe="") for part in parts)
        line: dict[str, Any] = {"page": shown.page, "url": url, "goal": goal_record(self.shop, self.goal)}
        if shown.page == "search_results":
            listed = [product.asin for product in self.shop.find(list(shown.keywords))]
            listed = listed[(shown.number - 1) * 10 : shown.number * 10]
            line["content"] = {
                "keywords": list(shown.keywords), "search_result_asins": listed, "page": shown.number,
            }  # fmt: skip
        elif shown.page in ("item_page", "item_sub_page"):
            line["content"] = {
                "keywords": list(shown.keywords), "page": shown.number,
                "asin": shown.asin, "options": dict(shown.options),
            }  # fmt: skip
        elif shown.page == "done":
            price = self.shop.prices[shown.asin]
            line["content"] = {"asin": shown.asin, "options": dict(shown.options), "price": price}
            reward = self.shop.reward(self.goal, shown.asin, dict(shown.options))
            line |= {"reward": reward.total, "reward_info": {"r_type": reward.r_type, "r_att": reward.r_att}}
        self.lines.append(line)

    def text(self) -> str:
        return "".join(json.dumps(line) + "\n" for line in self.lines)


def goal_record(shop: Shop, goal: Goal) -> dict[str, Any]:
    product = shop.catalog[goal.asin]
    return {
        "asin": goal.asin,
        "category": product.category,
        "query": product.query,
        "name": product.title,
        "product_category": product.product_category,
        "instruction_text": goal.instruction,
        "attributes": list(goal.attributes),
        "price_upper": goal.price_upper,
        "goal_options": goal.options if isinstance(goal.options, dict) else list(goal.options),
        "weight": goal.weight,
    }

"""One shopper's visit: which page is shown, and what an action does to it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from .catalog import Product
from .goals import Goal
from .pages import (
    BACK_TO_SEARCH,
    BUY_NOW,
    NEXT,
    PREVIOUS,
    PRODUCTS_PER_PAGE,
    SUB_PAGES,
    ObservationMode,
    Page,
)
from .reward import RewardInfo
from .shop import Shop, SpecialSearchError

ADDRESS = "http://127.0.0.1:3000"
"""Where the original's text mode pretends to be; its text_rich reads the page's address."""

_INDEX = Page("index")
_PLACES = ("search_results", "item_page", "item_sub_page", "done")
_MAX_QUOTED = 80


class ActionError(ValueError):
    """The action does nothing here; the message says why, for the agent to read."""


def parse_action(action: str) -> tuple[str, str] | None:
    """Split ``name[argument]`` as the original's ``(.+)\\[(.+)\\]`` does, but in linear time, or None."""
    line = action.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, end - 1) if end > 2 else -1
    return (line[:start], line[start + 1 : end]) if start > 0 else None


def can_be_named(value: str) -> bool:
    """Return whether ``click[value]`` is read as a click on `value`: brackets and line breaks are not."""
    return bool(value) and "[" not in value and "\n" not in value


class Session:
    """A visit to the shop with one goal. `act` changes it; an action that does nothing raises `ActionError`.

    page: the page that is shown. reward: of the purchase, once there is one. What else there is (keywords,
    asin, options) is what the next action starts from; it can differ from the page after a search that fails
    in the original (see `Compat.special_searches`).
    """

    def __init__(self, shop: Shop, goal: Goal) -> None:
        self.shop, self.goal, self._texts = shop, goal, shop.texts
        self.reward: RewardInfo | None = None
        self._open_index()

    def _open_index(self) -> None:
        self.keywords: list[str] = []
        self.number = 0
        self.asin: str | None = None
        self.visited: set[str] = set()
        self.options: dict[str, str] = {}
        self._show(_INDEX, f"{ADDRESS}/{self.goal.goal_id}")

    def _show(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self._shown: tuple[list[str], int, str | None, dict[str, str]] | None = None

    def act(self, action: str) -> None:
        """Do `action`.

        Raises:
            ActionError: it is not an action, or not one for this page. The page stays as it is.
        """
        if self.page.kind == "done" and self.shop.compat.over_when_done:
            raise ActionError("The purchase is made; nothing more can be done.")
        parsed = parse_action(action)
        if parsed is None:
            raise ActionError(f"{_quote(action)} is not an action. Write search[keywords] or click[value].")
        name, argument = parsed[0], parsed[1].lower()
        if name == "search":
            self._show_results(argument.split(" "), 1)
        elif name == "click":
            if argument == "search" or argument not in self.clickables:
                raise ActionError(self._cannot_click(argument))
            self._click(argument)
        else:
            raise ActionError(f"There is no action {_quote(name)}. Write search[keywords] or click[value].")

    @property
    def clickables(self) -> tuple[str, ...]:
        return self._texts.clickables(self.page)

    def _cannot_click(self, argument: str) -> str:
        if argument == "search" and self.page.kind == "index":
            return "To search, write search[keywords]."
        return f"{_quote(argument)} cannot be clicked on this page."

    def _click(self, argument: str) -> None:
        if argument == BUY_NOW:
            self._buy()
        elif argument == BACK_TO_SEARCH:
            self._open_index()
        elif argument == NEXT and self._place == "search_results":
            self._show_results(self.keywords, self.number + 1)
        elif argument == PREVIOUS and self._place == "search_results":
            self._show_results(self.keywords, self.number - 1)
        elif argument == PREVIOUS and self._place == "item_page":
            self._show_results(self.keywords, self.number)
        elif argument in SUB_PAGES:
            product = self._current_product()
            page = Page("sub", product=product, chosen=dict(self.options), sub_page=argument)
            self._show(page, self._address("item_sub_page", SUB_PAGES[argument], str(self.options)))
        else:
            self._choose(argument)

    @property
    def _place(self) -> str:
        """Where the visitor is, by the page shown or, as the original has it, by the words in its address."""
        if self.shop.compat.page_from_state:
            kinds = {"index": "", "results": "search_results", "item": "item_page", "sub": "item_sub_page"}
            return kinds.get(self.page.kind, "done")
        return next((place for place in _PLACES if place in self.url), "")

    def _show_results(self, keywords: list[str], number: int) -> None:
        # the original forgets product and options before it searches, also when the search then fails
        before = (self.keywords, self.number, self.asin, self.options)
        self.keywords, self.number, self.asin, self.options = keywords, number, None, {}
        try:
            found = self.shop.find(keywords)
        except SpecialSearchError as error:
            self._shown = self._shown or before
            raise ActionError(str(error)) from None
        shown = found[(number - 1) * PRODUCTS_PER_PAGE : number * PRODUCTS_PER_PAGE]
        page = Page("results", products=shown, number=number, total=len(found))
        self._show(page, f"{ADDRESS}/search_results/{self.goal.goal_id}/{'+'.join(keywords)}/{number}")

    def _choose(self, argument: str) -> None:
        """Open a listed product, choose an option, or come back from a sub page."""
        if self.page.kind == "results":
            self.asin = next(p.asin for p in self.page.products if p.asin.lower() == argument)
            self.visited.add(self.asin)
        elif self.page.product is not None and self.page.kind == "item":
            # of equal texts in several option types the last one counts, as in the original
            types = {value: name for name, values in self.page.product.options.items() for value in values}
            self.options[types[argument]] = argument
        product = self._current_product()
        page = Page("item", product=product, chosen=dict(self.options))
        self._show(page, self._address("item_page", json.dumps(self.options)))

    def _current_product(self) -> Product:
        if self.asin is None:
            raise ActionError("The last search failed and closed this product. Go back to search.")
        return self.shop.catalog[self.asin]

    def _address(self, place: str, *tail: str) -> str:
        head = f"{ADDRESS}/{place}/{self.goal.goal_id}/{self.asin}/{'+'.join(self.keywords)}/{self.number}/"
        return head + "/".join(tail)

    def _buy(self) -> None:
        product = self._current_product()
        self.reward = self.shop.reward(self.goal, product.asin, self.options)
        page = Page("done", product=product, chosen=dict(self.options), score=self.reward.total)
        self._show(page, f"{ADDRESS}/done/{self.goal.goal_id}/{product.asin}/{self.options}")

    def key(self, *, with_visited: bool) -> str:
        """Return a text that is equal for equal states of equal goals: of what is shown and chosen.

        An action that did nothing never changes it, also not a search that fails in the original.

        Args:
            with_visited: products opened before make a different state (`text_rich` shows them).
        """
        keywords, number, asin, options = self._shown or (
            self.keywords,
            self.number,
            self.asin,
            self.options,
        )
        chosen = json.dumps(options, sort_keys=True) if options else ""
        visited = ",".join(sorted(self.visited)) if with_visited else ""
        place = f"{self.page.kind} {self.page.sub_page}|{asin}|{chosen}|{visited}|{number}"
        return f"{self.goal.goal_id}|{place}|{' '.join(keywords)}"

    def observation(self, mode: ObservationMode) -> str:
        """Return the page as text."""
        if mode == "text":
            return self._texts.text(self.page, self.goal.instruction)
        return self._texts.rich(self.page, self.goal.instruction, self._clicked(), self.visited)

    def _clicked(self) -> set[tuple[str, str]]:
        product = self.page.product
        if self.page.kind != "item" or product is None:
            return set()
        chosen: Mapping[str, str] = self.page.chosen or {}
        if self.shop.compat.clicked_from_state:
            return set(chosen.items())
        if not chosen and '"' not in self.url:
            return set()
        pairs = ((name, value) for name, values in product.options.items() for value in values)
        return {(name, value) for name, value in pairs if f'"{value}"' in self.url}


def _quote(text: str) -> str:
    """Return `text` in quotes, at most `_MAX_QUOTED` characters as they are written: a rare one is written as ten."""
    quoted = repr(text[: _MAX_QUOTED + 1])
    return quoted if len(quoted) <= _MAX_QUOTED + 2 else f"{quoted[: _MAX_QUOTED - 2]}...{quoted[0]}"

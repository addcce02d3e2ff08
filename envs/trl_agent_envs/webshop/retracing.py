"""Finds what a visitor did between the pages of a log, and does it in a session of this shop."""

from __future__ import annotations

import dataclasses

from .goals import Goal
from .log_lines import LogLine
from .pages import BACK_TO_SEARCH, BUY_NOW, NEXT, PREVIOUS
from .replay import search_action
from .session import ActionError, Session
from .shop import Shop


class NotReplayable(ValueError):
    """A visit cannot be done again here. `reason` names the kind; the message adds where and what."""

    def __init__(self, reason: str, where: str, detail: str = "") -> None:
        super().__init__(f"{where}: {reason}" + (f" ({detail})" if detail else ""))
        self.reason = reason


class Retracing:
    """Finds the actions that lead through the pages of a log, and does them in a session.

    People go back and forth with their browser, which shows a kept page without a line in the log, so there
    may be several actions between two lines, or none (a page loaded again).
    """

    def __init__(self, shop: Shop, goal: Goal) -> None:
        self.session = Session(shop, goal)
        self.actions: list[str] = []
        self.other_lists = 0
        self._keywords: tuple[str, ...] = ()
        self._opened: dict[str, LogLine] = {}  # asin -> the last page of it

    def show(self, line: LogLine) -> None:
        """Do what leads to the page of `line`.

        Raises:
            NotReplayable: no action does.
        """
        try:
            if line.page == "index":
                self._go_to_index()
            elif line.page == "search_results":
                self._go_to_results(line)
                self._compare(line)
            else:
                self._go_to_item(line)
                if line.page == "item_sub_page":
                    self._open_sub_page(line.sub_page)
                elif line.page == "done":
                    self._click(BUY_NOW)
        except ActionError as error:
            raise NotReplayable(
                f"a page of kind {line.page} cannot be reached", line.where, str(error)
            ) from error

    def _do(self, action: str) -> None:
        self.session.act(action)
        self.actions.append(action)

    def _click(self, value: str) -> None:
        self._do(f"click[{value}]")

    def _go_to_index(self) -> None:
        if self.session.page.kind != "index":
            self._click(BACK_TO_SEARCH)

    def _go_to_results(self, line: LogLine) -> None:
        if self.session.page.kind == "index" or self._keywords != line.keywords:
            self._go_to_index()  # people can search from there only
            self._do(search_action(" ".join(line.keywords)))
            self._keywords = line.keywords
        while self.session.page.kind in ("sub", "item"):
            self._click(PREVIOUS)
        while self.session.page.number < line.number:
            self._click(NEXT)
        while self.session.page.number > line.number:
            self._click(PREVIOUS)

    def _compare(self, line: LogLine) -> None:
        listed = tuple(product.asin for product in self.session.page.products)
        self.other_lists += line.listed is not None and line.listed != listed

    def _go_to_item(self, line: LogLine) -> None:
        if not self._is_on(line):
            if line.page == "done" and (opened := self._opened.get(line.asin)):
                # its line does not say which search led there
                line = dataclasses.replace(line, keywords=opened.keywords, number=opened.number)
            self._go_to_results(line)
            self._click(line.asin.lower())
        if self.session.page.kind == "sub" and line.page != "item_sub_page":
            self._click(PREVIOUS)
        self._choose(line)
        self._opened[line.asin] = line

    def _is_on(self, line: LogLine) -> bool:
        """Whether the product of `line` is open, by the same way and without a choice that must be undone."""
        page = self.session.page
        if page.kind not in ("item", "sub") or self.session.asin != line.asin:
            return False
        same_way = line.page == "done" or (self._keywords, self.session.number) == (
            line.keywords,
            line.number,
        )
        return same_way and set(self.session.options) <= {name for name, _ in line.options}

    def _choose(self, line: LogLine) -> None:
        wanted = dict(line.options)
        if self.session.options == wanted:
            return
        if self.session.page.kind == "sub":
            self._click(PREVIOUS)
        for name, value in line.options:
            if self.session.options.get(name) != value:
                self._click(value)
        if self.session.options != wanted:
            raise ActionError("several option types share a value, so its text does not say which is meant.")

    def _open_sub_page(self, name: str) -> None:
        page = self.session.page
        if page.kind == "sub" and page.sub_page == name:
            return
        if page.kind == "sub":
            self._click(PREVIOUS)
        self._click(name)

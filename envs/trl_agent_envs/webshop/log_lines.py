"""Lines of the original's session logs, checked: one line a page that the visitor was shown."""

from __future__ import annotations

import ast
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from .goals import Goal
from .pages import SUB_PAGES

PageName = Literal["index", "search_results", "item_page", "item_sub_page", "done"]
_PAGES = ("index", "search_results", "item_page", "item_sub_page", "done")
_MAX_PAGE = 1000
_MAX_LITERAL = 10_000
_SUB_PAGE_SEGMENT = 3
"""In ``<session>/<asin>/<keywords>/<page>/<sub page>/<options>``, no earlier one names it."""


class LogError(ValueError):
    """A line of a log is malformed: "file:line:field: what, expected ..."."""


@dataclass(frozen=True)
class LogLine:
    """One page that was shown.

    where: "file:line". session: the name in the address. goal: what was asked for (its id is unknown: -1).
    keywords, number, asin, options, sub_page: the page's state, as far as it has one. listed: asins of a
    results page, None if the log does not say. reward: of a purchase, None if the log does not say.
    """

    where: str
    page: PageName
    session: str
    goal: Goal
    keywords: tuple[str, ...] = ()
    number: int = 1
    asin: str = ""
    options: tuple[tuple[str, str], ...] = ()
    sub_page: str = ""
    listed: tuple[str, ...] | None = None
    reward: float | None = None


def read_log(path: str | os.PathLike[str]) -> Iterator[LogLine | LogError]:
    """Yield the lines of a log in order; for a malformed one the error, so that the caller decides.

    Empty lines are skipped.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            try:
                yield _Line(f"{os.fspath(path)}:{number}", raw).parse()
            except LogError as error:
                yield error


class _Line:
    """Typed access to one line, with errors that say where."""

    def __init__(self, where: str, raw: bytes) -> None:
        self.where = where
        try:
            row = json.loads(raw.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
            raise self.error("(row)", f"not JSON ({error})", "one JSON object a line") from error
        self.row: dict[str, Any] = self.checked("(row)", row, dict, "a JSON object")

    def error(self, field: str, what: str, expected: str) -> LogError:
        return LogError(f"{self.where}:{field}: {what}, expected {expected}")

    def checked(self, field: str, value: Any, kind: type, expected: str) -> Any:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.error(field, "missing" if value is None else _show(value), expected)
        return value

    def parse(self) -> LogLine:
        page = self.row.get("page")
        if page not in _PAGES:
            what = "missing" if page is None else _show(page)
            raise self.error("page", what, f"one of {', '.join(_PAGES)}")
        segments = self._address(page)
        goal = self._goal(self.checked("goal", self.row.get("goal"), dict, "an object"))
        values: dict[str, Any] = {}
        if page != "index":
            content = self.checked("content", self.row.get("content"), dict, "an object")
            values = self._state(page, content)
        if page == "item_sub_page":
            values["sub_page"] = self._sub_page(segments)
        if page == "done" and self.row.get("reward") is not None:
            values["reward"] = self._number("reward", self.row["reward"])
        return LogLine(self.where, page, segments[0], goal, **values)

    def _address(self, page: str) -> list[str]:
        """Return the parts of the address from the session's name on."""
        url = self.checked("url", self.row.get("url"), str, "the page's address")
        try:
            path = urlsplit(url).path
        except ValueError as error:
            raise self.error("url", f"{_show(url)} ({error})", "the page's address") from error
        segments = [unquote(segment) for segment in path.split("/")]
        if page == "index":
            segments = segments[-1:]
        else:
            segments = segments[segments.index(page) + 1 :] if page in segments else []
        if not segments or not segments[0]:
            expected = (
                "an address ending in the session's name" if page == "index" else f"/{page}/<session>/..."
            )
            raise self.error("url", _show(url), expected)
        return segments

    def _sub_page(self, segments: list[str]) -> str:
        names = [segment.lower() for segment in segments[_SUB_PAGE_SEGMENT:]]
        for name in names:
            if name in SUB_PAGES or name == "attributes":
                return name
        raise self.error("url", _show("/".join(segments)), f"a sub page ({', '.join(SUB_PAGES.values())})")

    def _state(self, page: str, content: dict[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if page != "done":
            values["keywords"] = self._keywords(content.get("keywords"))
            values["number"] = self._page_number(content.get("page"))
        if page == "search_results":
            if content.get("search_result_asins") is not None:
                values["listed"] = self._texts(
                    "content.search_result_asins", content["search_result_asins"], "a list of strings"
                )
        else:
            values["asin"] = self.checked("content.asin", content.get("asin"), str, "a string")
            values["options"] = self._options(content.get("options"))
        return values

    def _texts(self, field: str, value: Any, expected: str) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            raise self.error(field, "missing" if value is None else _show(value), expected)
        return tuple(value)

    def _keywords(self, value: Any) -> tuple[str, ...]:
        words = self._texts("content.keywords", _literal(value), "a list of words")
        if not words:
            raise self.error("content.keywords", "an empty list", "at least one word")
        return words

    def _page_number(self, value: Any) -> int:
        number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 9 else value
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MAX_PAGE:
            what = "missing" if value is None else _show(value)
            raise self.error("content.page", what, f"a page number of at most {_MAX_PAGE}")
        return number

    def _options(self, value: Any) -> tuple[tuple[str, str], ...]:
        options = _literal(value)
        if not isinstance(options, dict) or not all(
            isinstance(text, str) for pair in options.items() for text in pair
        ):
            what = "missing" if value is None else _show(value)
            raise self.error("content.options", what, "an object of option type to value")
        return tuple(options.items())

    def _number(self, field: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(field, _show(value), "a finite number")
        return float(value)

    def _goal(self, goal: dict[str, Any]) -> Goal:
        for field in ("asin", "instruction_text"):
            self.checked(f"goal.{field}", goal.get(field), str, "a string")
        attributes = self._texts("goal.attributes", goal.get("attributes"), "a list of strings")
        options = goal.get("goal_options")
        if isinstance(options, dict):
            if not all(isinstance(value, str) for value in options.values()):
                raise self.error("goal.goal_options", _show(options), "texts")
        else:
            options = self._texts("goal.goal_options", options, "a list or an object of strings")
        upper = self._number("goal.price_upper", goal.get("price_upper"))
        weight = self._number("goal.weight", goal.get("weight", 1.0))
        return Goal(-1, goal["asin"], goal["instruction_text"], attributes, options, upper, weight)


def _literal(value: Any) -> Any:
    """Return the list or dict that a text spells, as the original's addresses do, also percent-encoded."""
    if not isinstance(value, str) or len(value) > _MAX_LITERAL:
        return value
    for text in (value, unquote(value)):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return value


def _show(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"

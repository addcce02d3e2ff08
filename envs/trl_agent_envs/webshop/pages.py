"""What each page of the shop shows: its text in two forms, and what can be clicked on it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from .catalog import Product

ObservationMode = Literal["text", "text_rich"]
OBSERVATION_MODES: tuple[ObservationMode, ...] = ("text", "text_rich")
PageKind = Literal["index", "results", "item", "sub", "done"]

PRODUCTS_PER_PAGE = 10
SUB_PAGES = {"description": "Description", "features": "Features", "reviews": "Reviews"}
BACK_TO_SEARCH, PREVIOUS, NEXT, BUY_NOW = "back to search", "< prev", "next >", "buy now"

_Role = Literal["plain", "button"]
_Node = tuple[str, _Role]
"""A visible piece of text, and whether it is plain or a button's."""

_ITEM_BUTTONS = ("Description", "Features", "Reviews", "Buy Now")


@dataclass(frozen=True, slots=True)
class Page:
    """One page as it is shown.

    products: what a results page lists. number, total: the page's number, and of all results.
    product: of an item, sub or done page. chosen: its chosen options, type -> value.
    """

    kind: PageKind
    products: tuple[Product, ...] = ()
    number: int = 0
    total: int = 0
    product: Product | None = None
    chosen: Mapping[str, str] | None = None
    sub_page: str = ""
    score: float = 0.0


class PageTexts:
    """Pieces of pages that depend on a product alone, made once and kept (bounded)."""

    def __init__(self, max_products: int = 8192) -> None:
        self._max = max_products
        self._pieces: dict[tuple[str, str], str] = {}
        self._clickables: dict[str, tuple[str, ...]] = {}

    def clickables(self, page: Page) -> tuple[str, ...]:
        """Return what can be clicked, in the original's order ("search" is listed, but does nothing)."""
        if page.kind == "results":
            previous = (PREVIOUS,) if page.number > 1 else ()
            return (BACK_TO_SEARCH, *previous, NEXT, *[product.asin.lower() for product in page.products])
        if page.kind == "item" and page.product is not None:
            return self._item_clickables(page.product)
        return {"index": ("search",), "sub": (BACK_TO_SEARCH, PREVIOUS)}.get(page.kind, ())

    def _item_clickables(self, product: Product) -> tuple[str, ...]:
        found = self._clickables.get(product.asin)
        if found is None:
            if len(self._clickables) >= self._max:
                self._clickables.clear()
            values = (value for values in product.options.values() for value in values)
            found = tuple(dict.fromkeys((BACK_TO_SEARCH, PREVIOUS, *SUB_PAGES, BUY_NOW, *values)))
            self._clickables[product.asin] = found
        return found

    def _kept(self, kind: str, product: Product) -> str | None:
        return self._pieces.get((kind, product.asin))

    def _keep(self, kind: str, product: Product, text: str) -> str:
        if len(self._pieces) >= 4 * self._max:
            self._pieces.clear()
        self._pieces[kind, product.asin] = text
        return text

    def text(self, page: Page, instruction: str) -> str:
        """Return the page in "text" mode: all visible texts, stripped, joined by " [SEP] "."""
        if page.kind == "index":
            return f"WebShop [SEP] Instruction: [SEP] {instruction.strip()} [SEP] Search"
        if page.kind == "done":
            return _flat(_done_nodes(page))
        head = f"Instruction: [SEP] {instruction.strip()} [SEP] Back to Search"
        if page.kind == "results":
            previous = " [SEP] < Prev" if page.number > 1 else ""
            listed = "".join([self._result_text(product) for product in page.products])
            total = f"Page {page.number} (Total results: {page.total})"
            return f"{head} [SEP] {total}{previous} [SEP] Next >{listed}"
        assert page.product is not None
        kind = page.sub_page if page.kind == "sub" else "item"
        body = self._kept(kind, page.product)
        if body is None:
            nodes = _sub_nodes(page) if page.kind == "sub" else _item_nodes(page.product)
            body = self._keep(kind, page.product, "".join(f" [SEP] {text}" for text in _stripped(nodes)))
        return f"{head} [SEP] < Prev{body}"

    def _result_text(self, product: Product) -> str:
        text = self._kept("result", product)
        if text is None:
            nodes: list[_Node] = [
                (product.asin, "plain"),
                (product.title, "plain"),
                (product.price_tag, "plain"),
            ]
            text = self._keep("result", product, "".join(f" [SEP] {t}" for t in _stripped(nodes)))
        return text

    def rich(
        self,
        page: Page,
        instruction: str,
        clicked: Collection[tuple[str, str]] = (),
        visited: Collection[str] = (),
    ) -> str:
        """Return the page in "text_rich" mode: a text a line, buttons marked, clicked ones marked as such.

        Args:
            clicked: (type, value) of the options to show as clicked.
            visited: asins to show as clicked.
        """
        if page.kind == "index":
            return f"WebShop\nInstruction: \n{instruction}\n[button] Search [button_]\n"
        if page.kind == "done":
            return _lines(_done_nodes(page))
        head = f"Instruction:\n{instruction}\n[button] Back to Search [button_]\n"
        if page.kind == "results":
            previous = "[button] < Prev [button_]\n" if page.number > 1 else ""
            listed = "".join(
                [self._result_rich(product, product.asin in visited) for product in page.products]
            )
            total = f"Page {page.number} (Total results: {page.total})\n"
            return f"{head}{total}{previous}[button] Next > [button_]\n{listed}"
        assert page.product is not None
        if page.kind == "sub":
            body = self._kept("rich " + page.sub_page, page.product)
            if body is None:
                body = self._keep("rich " + page.sub_page, page.product, _lines(_sub_nodes(page)))
            return f"{head}[button] < Prev [button_]\n{body}"
        return self._item_rich(page.product, head, clicked)

    def _result_rich(self, product: Product, visited: bool) -> str:
        kind = "rich visited" if visited else "rich result"
        text = self._kept(kind, product)
        if text is None:
            word = "clicked button" if visited else "button"
            nodes: list[_Node] = [(product.title, "plain"), (product.price_tag, "plain")]
            text = self._keep(kind, product, f"\n[{word}] {product.asin} [{word}_]\n" + _lines(nodes))
        return text

    def _item_rich(self, product: Product, head: str, clicked: Collection[tuple[str, str]]) -> str:
        rest = self._kept("rich rest", product)
        if rest is None:
            rest = self._keep("rich rest", product, _lines(_product_nodes(product)))
        if not clicked:
            options = self._kept("rich options", product)
            if options is None:
                options = self._keep("rich options", product, _option_lines(product, ())[0])
            top = ""
        else:
            options, top = _option_lines(product, clicked)
        return f"{top}{head}[button] < Prev [button_]\n{options}{rest}"


def _option_lines(product: Product, clicked: Collection[tuple[str, str]]) -> tuple[str, str]:
    """Return the options' lines, and the lines on top that say what was clicked (last one first)."""
    lines, top = [], ""
    for name, values in product.options.items():
        if _is_visible(name):
            lines.append(f"{name}\n")
        for value in values:
            if not _is_visible(value):
                continue
            if (name, value) in clicked:
                lines.append(f"  [clicked button] {value} [clicked button_]\n")
                top = f"You have clicked {value}.\n{top}"
            else:
                lines.append(f"  [button] {value} [button_]\n")
    return "".join(lines), top


def _is_visible(text: str) -> bool:
    # an empty text makes no node, and the original skips a node that is one line break
    return text not in ("", "\n")


def _stripped(nodes: Iterable[_Node]) -> list[str]:
    return [text.strip() for text, _ in nodes if _is_visible(text)]


def _flat(nodes: Iterable[_Node]) -> str:
    return " [SEP] ".join(_stripped(nodes))


def _lines(nodes: Iterable[_Node]) -> str:
    return "".join(
        f"[button] {text} [button_]\n" if role == "button" else f"{text}\n"
        for text, role in nodes
        if _is_visible(text)
    )


def _item_nodes(product: Product) -> list[_Node]:
    nodes: list[_Node] = []
    for name, values in product.options.items():
        nodes.append((name, "plain"))
        nodes += [(value, "plain") for value in values]
    return nodes + _product_nodes(product)


def _product_nodes(product: Product) -> list[_Node]:
    plain = (product.title, f"Price: {product.price_tag}", "Rating: N.A.")
    return [(text, "plain") for text in plain] + [(text, "button") for text in _ITEM_BUTTONS]


def _sub_nodes(page: Page) -> list[_Node]:
    """Reviews are not part of the original's data: their page is always empty."""
    assert page.product is not None
    if page.sub_page == "description":
        return [(page.product.description, "plain")]
    if page.sub_page == "features":
        return [(f" {point}", "plain") for point in page.product.bullet_points]
    return []


def _done_nodes(page: Page) -> list[_Node]:
    """The page after a purchase; the original's template shows fields that its text mode never fills."""
    assert page.product is not None
    nothing = [
        field for name in ("attrs", "category", "query", "product category") for field in (name, "None")
    ]
    texts = [
        "Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)",
        "Purchased", "asin", page.product.asin, "options", _tojson(page.chosen or {}), *nothing,
        "Target", "asin", "options", "attrs", "price upper", "instuction text", "category",
        "product category", "query", "Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)",
        str(page.score), "Reward Details ", "None",
    ]  # fmt: skip
    return [(text, "plain") for text in texts]


def _tojson(value: Mapping[str, str]) -> str:
    """Return JSON as Flask's template filter writes it."""
    text = json.dumps(dict(value), sort_keys=True)
    for char in "<>&'":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text

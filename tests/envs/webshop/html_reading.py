"""Reads the site's pages as the original's text environment reads its own: visible texts and what can be clicked."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_UNSEEN = {"style", "script", "head", "title", "meta", ""}
_VOID = {"meta", "link", "input", "img", "br"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parent: Element | None = None
    texts: list[str] = field(default_factory=list)

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def text(self) -> str:
        return "".join(self.texts).strip()


class ReadPage(HTMLParser):
    """One page. `elements` in document order, `visible` its text as the "text" observation has it."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.comments: list[str] = []
        self._open: list[Element] = []
        self._texts: list[str] = []
        # a browser moves line breaks from behind the body's end into it, where two of them are a visible text
        assert html.endswith("</main></body></html>")
        self.feed(html)
        self.close()
        assert not self._open, f"unclosed: {[element.tag for element in self._open]}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        element = Element(
            tag, {name: value or "" for name, value in attributes}, self._open[-1] if self._open else None
        )
        assert len(attributes) == len(element.attributes), f"an attribute twice: {attributes}"
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        opened = self._open.pop()
        assert opened.tag == tag, f"</{tag}> closes {opened.tag}"

    def handle_data(self, data: str) -> None:
        parent = self._open[-1].tag if self._open else ""
        for element in self._open:
            element.texts.append(data)
        if parent not in _UNSEEN and data != "\n":
            self._texts.append(data.strip())

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    @property
    def visible(self) -> str:
        return " [SEP] ".join(self._texts)

    @property
    def clickables(self) -> list[str]:
        buttons = [element.text.lower() for element in self.elements if "btn" in element.classes]
        links = [element.text.lower() for element in self.elements if "product-link" in element.classes]
        radios = [element.attributes["value"] for element in self.radios]
        return list(dict.fromkeys([*buttons, *links, *radios]))

    @property
    def radios(self) -> list[Element]:
        return [element for element in self.elements if element.attributes.get("type") == "radio"]

    def by_id(self, name: str) -> Element:
        (found,) = [element for element in self.elements if element.attributes.get("id") == name]
        return found

    @property
    def note(self) -> str:
        """What the page tells the visitor beside its text."""
        notes = [e.attributes["data-label"] for e in self.elements if e.attributes.get("id") == "message"]
        return notes[0] if notes else ""

    def form_of(self, element: Element) -> Element:
        while element.tag != "form":
            assert element.parent is not None
            element = element.parent
        return element

"""Fills the templates. Autoescape is on and nothing here marks a text as safe."""

from __future__ import annotations

from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined

from ..pages import SUB_PAGES, PageKind
from .visits import Visit

STATIC = resources.files(__package__) / "static"

_FILES: dict[PageKind, str] = {
    "index": "index.html",
    "results": "results.html",
    "item": "item.html",
    "sub": "sub.html",
    "done": "done.html",
}


class Templates:
    """The pages as HTML.

    The visible texts of a visit's page are the texts of its "text" observation, node for node, as the
    original's reading finds them: every text node outside ``head``, ``script``, ``style`` and ``title`` that
    is not one line break. So lines of a template are joined by single line breaks (with none after ``main``,
    where a browser makes one text of them), and what is for people alone stands in attributes (``value``,
    ``aria-label``, and ``data-label``, which the style sheet shows).
    """

    def __init__(self) -> None:
        self._environment = Environment(
            loader=FunctionLoader(_source),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )

    def visit(self, visit: Visit, note: str = "") -> bytes:
        """Return the page that a visit is on, with a note to the visitor."""
        page = visit.session.page
        return self._render(
            _FILES[page.kind],
            page=page,
            instruction=visit.session.goal.instruction,
            sub_pages=SUB_PAGES,
            here=f"/visit/{visit.visit_id}/{visit.turn}",
            note=note,
            visit=visit,
            reward=visit.session.reward,
        )

    def message(self, heading: str, text: str) -> bytes:
        """Return a page that says why there is no other, with a link to begin a visit."""
        return self._render("message.html", heading=heading, text=text)

    def _render(self, name: str, **values: object) -> bytes:
        text = self._environment.get_template(name).render(values)
        return text.encode("utf-8", "replace")  # a lone surrogate in the data has no UTF-8


def _source(name: str) -> str:
    """Return a template without its indentation, which would make text nodes of its own."""
    text = (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())

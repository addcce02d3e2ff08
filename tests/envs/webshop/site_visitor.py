"""A visitor without a browser: does on a page of the site what a person would, through the page's own forms."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.testclient import TestClient

from tests.envs.webshop.html_reading import Element, ReadPage
from trl_agent_envs.webshop import RawCatalog
from trl_agent_envs.webshop.env import WebShopEnv
from trl_agent_envs.webshop.site import Site


def site_of(raw: RawCatalog, *, max_turns: int = 100, **options: Any) -> Site:
    """The site of a small shop, with all its goals."""
    return Site(WebShopEnv(data_dir=raw, split="all", max_turns=max_turns), **options)


class Visitor:
    """One browser with its own cookies."""

    def __init__(self, site: Site, start: str | None = "/") -> None:
        self.client = TestClient(site)
        self.status = 0
        if start is not None:
            self.get(start)

    def get(self, address: str) -> ReadPage:
        return self._take(self.client.get(address))

    def post(self, address: str, fields: list[tuple[str, str]], **headers: str) -> ReadPage:
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        body = urlencode(fields, errors="surrogatepass")
        return self._take(self.client.post(address, content=body, headers=kind | headers))

    def _take(self, response: Any) -> ReadPage:
        self.status, self.address, self.html = response.status_code, response.url.path, response.text
        self.headers = response.headers
        self.page = ReadPage(self.html)
        return self.page

    @property
    def visit(self) -> str:
        """The id in the address."""
        return self.address.split("/")[2]

    def search(self, query: str) -> ReadPage:
        form = self.page.form_of(self.page.by_id("search_input"))
        return self.post(form.attributes["action"], [("search_query", query)])

    def click(self, value: str) -> ReadPage:
        """Press the button, or choose the option, that is known by `value`; of equal options the last one."""
        element = self.find(value)
        assert element is not None, f"{value!r} is not on the page"
        name = element.attributes["name"]
        return self.post(
            self.page.form_of(element).attributes["action"], [(name, element.attributes["value"])]
        )

    def find(self, value: str) -> Element | None:
        for element in reversed(self.page.elements):
            is_radio = element.attributes.get("type") == "radio" and element.attributes["value"] == value
            is_button = {"btn", "product-link"} & set(element.classes) and element.text.lower() == value
            if is_radio or is_button:
                return element
        return None

    def do(self, action: str) -> ReadPage:
        name, _, argument = action[:-1].partition("[")
        return self.search(argument) if name == "search" else self.click(argument)

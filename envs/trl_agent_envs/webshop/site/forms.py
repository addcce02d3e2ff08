"""What a page's form asks for: where it comes from, what it holds, and which action it means."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

from ..replay import search_action

MAX_BODY = 64 * 1024
"""A request may carry this many bytes."""

_MAX_FIELDS = 8


def check_same_origin(request: Request) -> None:
    """Refuse (403) a form that another site's page sent; the cookie's SameSite rule is the other guard."""
    origin, host = request.headers.get("origin"), request.headers.get("host")
    same = origin is None or origin in (f"http://{host}", f"https://{host}")
    if not same or request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "This was sent from another site's page; nothing was done.")


async def read_form(request: Request) -> list[tuple[str, str]]:
    """Return the fields of a form as (name, value), in order. Refuses one that is too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"The form holds more than {MAX_BODY} bytes; nothing was done.")
    try:
        return parse_qsl(
            body.decode("ascii", "replace"),
            keep_blank_values=True,
            errors="replace",
            max_num_fields=_MAX_FIELDS,
        )
    except ValueError as error:
        raise HTTPException(400, f"The form cannot be read ({error}); nothing was done.") from error


def asked_action(kind: str, form: list[tuple[str, str]]) -> str | None:
    """Return the action that a page asks for. None: nothing was chosen."""
    values = dict(form)
    if kind == "search" and "search_query" in values:
        return search_action(values["search_query"])
    if kind == "click" and "value" in values:
        return f"click[{values['value']}]"
    if kind == "choose":  # the field is named after the option's type, which may be any text
        return f"click[{form[-1][1]}]" if form else None
    raise HTTPException(400, f"No page sends such a form to {kind!r}; nothing was done.")

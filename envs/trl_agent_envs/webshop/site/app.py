"""The site's addresses: where a visit begins, what it shows, and what is done in it."""

from __future__ import annotations

import hashlib
import logging
import random
import re
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..env import WebShopEnv
from ..goals import Goal
from ..replay import ReplayError
from .forms import asked_action, check_same_origin, read_form
from .recorder import Recorder
from .rendering import STATIC, Templates
from .visits import STALE, Visit, VisitStore

COOKIE = "webshop_owner"

_OWNER = re.compile(r"[A-Za-z0-9_-]{22,64}")
_NAME = re.compile(r"[\w-]{1,100}")
_FIXED = re.compile(r"fixed_([0-9]{1,9})")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # not "no-referrer": browsers then send "Origin: null" with a form, and its origin could not be checked
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_GONE = (
    "It was left alone for too long, too many others were begun since, the server was restarted, or it was "
    "begun in another browser."
)
_LOG = logging.getLogger(__name__)


class Site:
    """The shop as an ASGI application.

    ``/`` begins a visit with a goal drawn at random (a product, then one of its goals), ``/fixed_<i>`` with
    goal i, and any other ``/<name>`` with a goal that the name alone decides. A visit lives on the server; its
    pages are ``/visit/<id>/<turn>``, for the browser that began it alone. What is done is posted from a page
    and done only if that page is still the current one: a browser's "back" shows the current page and a note.

    Args:
        env: the environment whose pages these are. Its shop, goals and limit of turns hold, and it draws the
            goals; the visits are no episodes of it.
        recorder: gets every visit that ends, by a purchase or the limit. A visit that is left is not recorded.
        store: keeps the visits.
        hosts: names under which the site may be asked for; ("*",) allows all.
        rng: gives the seeds for the goals of ``/``.
    """

    def __init__(
        self,
        env: WebShopEnv,
        *,
        recorder: Recorder | None = None,
        store: VisitStore | None = None,
        hosts: Sequence[str] = ("*",),
        rng: random.Random | None = None,
    ) -> None:
        self.env, self.recorder = env, recorder
        self.store = VisitStore() if store is None else store
        self._rng = random.Random(secrets.randbits(128)) if rng is None else rng
        self._templates = Templates()
        self._one_at_a_time = threading.Lock()
        self._app = self._with_headers(self._routes(hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def _routes(self, hosts: Sequence[str]) -> Starlette:
        return Starlette(
            routes=[
                Route("/", self._begin),
                Mount("/static", StaticFiles(directory=Path(str(STATIC)))),
                Route("/visit/{visit}/{turn:int}", self._show),
                Route("/visit/{visit}/{turn:int}/{kind}", self._act, methods=["POST"]),
                Route("/{name}", self._begin),
            ],
            exception_handlers={HTTPException: self._refuse, 500: self._fail},
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)],
        )

    def _with_headers(self, app: ASGIApp) -> ASGIApp:
        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    headers = MutableHeaders(scope=message)
                    headers.update(_HEADERS)
                    # a kept page would hide where the visit is; a kept style sheet is asked about
                    is_file = scope["path"].startswith("/static/")
                    headers["Cache-Control"] = "no-cache" if is_file else "no-store"
                await send(message)

            await app(scope, receive, send_with_headers)

        return wrapped

    # ---- beginning ----------------------------------------------------------------------------------------
    async def _begin(self, request: Request) -> Response:
        name = request.path_params.get("name")
        owner = _owner(request)
        with self._one_at_a_time:
            goal = self._draw(self._rng.getrandbits(31)) if name is None else self._named(name)
            visit = self.store.open(
                owner or secrets.token_urlsafe(16), self.env.shop, goal, self.env.max_turns
            )
        response = _go(visit)
        if owner is None:
            response.set_cookie(COOKIE, visit.owner, httponly=True, samesite="lax", path="/")
        return response

    def _named(self, name: str) -> Goal:
        if not _NAME.fullmatch(name):
            raise HTTPException(
                404, "There is no such page; a visit's name has letters, digits, - and _ only."
            )
        if not name.startswith("fixed_"):
            return self._draw(int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big"))
        match, number = _FIXED.fullmatch(name), len(self.env.goals)
        if match is None or int(match[1]) >= number:
            raise HTTPException(404, f"There is no goal {name!r}; goals are fixed_0 to fixed_{number - 1}.")
        return self.env.goals[int(match[1])]

    def _draw(self, seed: int) -> Goal:
        self.env.reset(seed=seed)
        return self.env.session.goal

    # ---- pages and actions --------------------------------------------------------------------------------
    async def _show(self, request: Request) -> Response:
        with self._one_at_a_time:
            visit = self._visit(request)
            note = visit.note if request.path_params["turn"] == visit.turn else STALE
            return _html(self._templates.visit(visit, note))

    async def _act(self, request: Request) -> Response:
        check_same_origin(request)
        form = await read_form(request)
        with self._one_at_a_time:
            visit = self._visit(request)
            action = asked_action(request.path_params["kind"], form)
            if action is None:
                visit.note = "Choose an option first."
            elif visit.act(request.path_params["turn"], action) and visit.over:
                self._record(visit)
            return _go(visit)

    def _visit(self, request: Request) -> Visit:
        owner = _owner(request)
        visit = None if owner is None else self.store.get(request.path_params["visit"], owner)
        if visit is None:
            raise HTTPException(410, _GONE)
        return visit

    def _record(self, visit: Visit) -> None:
        if self.recorder is None:
            return
        try:
            self.recorder.write(visit)
        except (OSError, ReplayError) as error:
            _LOG.error("a visit could not be recorded: %s", error)
            visit.note = f"This visit could not be recorded: {error}"

    # ---- refusals -----------------------------------------------------------------------------------------
    async def _refuse(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        heading = "This visit is not here any more" if error.status_code == 410 else "That did not work"
        body = self._templates.message(heading, error.detail)
        return _html(body, error.status_code, dict(error.headers or {}))

    async def _fail(self, request: Request, error: Exception) -> Response:
        return _html(self._templates.message("The shop made a mistake", "It is in the server's log."), 500)


def _owner(request: Request) -> str | None:
    """Return the browser's token. Any well-formed one will do: servers on other ports of a host share the cookie."""
    owner = request.cookies.get(COOKIE, "")
    return owner if _OWNER.fullmatch(owner) else None


def _go(visit: Visit) -> Response:
    return RedirectResponse(f"/visit/{visit.visit_id}/{visit.turn}", 303)


def _html(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, "text/html")

"""Visits of the site: one session each, under an id that cannot be guessed, in a store with a bound."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from ..goals import Goal
from ..session import ActionError, Session
from ..shop import Shop

MAX_VISITS = 1000
"""Visits kept at once; one more drops the one that was left alone longest."""

MAX_IDLE_SECONDS = 3600.0
"""A visit that nobody has touched for this long is dropped."""

STALE = (
    "Nothing was done: that page was an earlier one. This is where the visit is now. "
    "To go back, use the buttons of the page."
)


class Visit:
    """One visit: its session, what was done in it, and what the visitor is to be told.

    actions: those that were carried out, in order. note: why the last attempt did nothing, or "".
    """

    def __init__(self, visit_id: str, owner: str, session: Session, max_turns: int) -> None:
        self.visit_id, self.owner, self.session, self.max_turns = visit_id, owner, session, max_turns
        self.actions: list[str] = []
        self.note = ""

    @property
    def turn(self) -> int:
        """How many actions were carried out; it names the page that is shown now."""
        return len(self.actions)

    @property
    def last_action(self) -> str:
        return self.actions[-1] if self.actions else ""

    @property
    def bought(self) -> bool:
        return self.session.page.kind == "done"

    @property
    def over(self) -> bool:
        """Whether the visit has ended, by a purchase or by the limit."""
        return self.bought or self.turn >= self.max_turns

    def act(self, turn: int, action: str) -> bool:
        """Do `action`, asked for on the page of `turn`; return whether it was done. If not, `note` says why."""
        if turn != self.turn:
            # a second click before the answer to the first came is no mistake
            if not (turn == self.turn - 1 and self.last_action == action):
                self.note = STALE
            return False
        if self.over:
            self.note = "This visit has ended; nothing more can be done."
            return False
        try:
            self.session.act(action)
        except ActionError as error:
            self.note = str(error)
            return False
        self.actions.append(action)
        self.note = ""
        if self.over and not self.bought:
            self.note = f"This visit has ended: it may take {self.max_turns} actions."
        return True


class VisitStore:
    """The visits that are going on, the one that was used last at the end.

    Args:
        max_visits: how many are kept.
        max_idle: seconds after which one that is not used is dropped.
        clock: seconds from any start, never going back.
    """

    def __init__(
        self,
        max_visits: int = MAX_VISITS,
        max_idle: float = MAX_IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_visits < 1 or max_idle <= 0:
            raise ValueError(f"max_visits and max_idle must be positive, got {max_visits} and {max_idle}")
        self.max_visits, self.max_idle, self._clock = max_visits, max_idle, clock
        self._visits: OrderedDict[str, tuple[float, Visit]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._visits)

    def open(self, owner: str, shop: Shop, goal: Goal, max_turns: int) -> Visit:
        """Begin a visit that only `owner` can see."""
        visit = Visit(secrets.token_urlsafe(16), owner, Session(shop, goal), max_turns)
        self._visits[visit.visit_id] = (self._clock(), visit)
        self._drop_old()
        return visit

    def get(self, visit_id: str, owner: str) -> Visit | None:
        """Return the visit, or None where there is none by this id or it is someone else's."""
        self._drop_old()
        _, visit = self._visits.get(visit_id, (0.0, None))
        if visit is None or not secrets.compare_digest(visit.owner, owner):
            return None
        self._visits[visit_id] = (self._clock(), visit)
        self._visits.move_to_end(visit_id)
        return visit

    def _drop_old(self) -> None:
        limit = self._clock() - self.max_idle
        while self._visits:
            oldest = next(iter(self._visits))
            if len(self._visits) <= self.max_visits and self._visits[oldest][0] >= limit:
                return
            del self._visits[oldest]

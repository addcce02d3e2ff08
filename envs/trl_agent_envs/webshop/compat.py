"""Where the shop does the right thing and the original did not: one switch a difference."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Compat:
    """Differences between "strict" (all True, the default) and "original" (all False).

    exact_option_matches: the option asked for counts when it is bought, and a colour is recognised as a word
        only. The original finds colour names inside other words ("rectangular" holds "tan") and compares
        synthetic options together with their type; 458 of the 6910 goals on the real 1000 products cannot be
        met exactly there.
    clicked_from_state: `text_rich` shows an option as clicked when it is chosen. The original looks for the
        quoted label in the page address, which fails for labels with quotes or non-ASCII letters and is
        fooled by a quoted search word.
    page_from_state: "< prev" goes back from where one is. The original reads the page from its address, so
        the search word "search_results" makes it show result page 0.
    special_searches: `search[<a> attribute]` and `search[<c>]` list products. The original raises; here, an
        action error. It forgets the product page at that point, so what is clicked next fails too.
    over_when_done: after a purchase nothing can be done. The original still searches.
    even_draws: an episode without a given goal draws a product, then one of its goals, each evenly. The
        original draws goals by their weights, and by one list too far: goal i has the weight of goal i - 1,
        goal 0 never comes up (see `draws.OriginalDraws`).
    """

    exact_option_matches: bool = True
    clicked_from_state: bool = True
    page_from_state: bool = True
    special_searches: bool = True
    over_when_done: bool = True
    even_draws: bool = True

    @classmethod
    def named(cls, name: str | Compat) -> Compat:
        """Return the switches for "strict" or "original" (or `name` itself if it is a `Compat`)."""
        if isinstance(name, Compat):
            return name
        if name == "strict":
            return cls()
        if name == "original":
            return cls(**{switch.name: False for switch in fields(cls)})
        raise ValueError(f'compat must be "strict", "original" or a Compat, got {name!r}')

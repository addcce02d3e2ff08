from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agent_envs.webshop.sorted_texts import SortedTexts, packed

_texts = st.text(alphabet=st.characters(), max_size=4) | st.sampled_from(
    ["", "\ud800", "\x00", "a\x00", "😀"]
)


@settings(max_examples=200, deadline=None)
@given(st.sets(_texts, max_size=12), _texts)
def test_finds_what_is_there_and_only_that(texts: set[str], other: str) -> None:
    ordered = sorted(texts)
    found = SortedTexts(*packed(ordered))
    assert len(found) == len(ordered)
    assert [found[place] for place in range(len(found))] == ordered
    assert [found.find(text) for text in ordered] == list(range(len(ordered)))
    assert found.find(other) == (ordered.index(other) if other in texts else None)

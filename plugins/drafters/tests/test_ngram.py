"""The drafter `ngram`, against a search that is written plainly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.errors import PluginError
from tenonry_drafters.ngram import NgramOptions
from tenonry_testkit.drafter import DrafterContract


def build(**options):
    suite = type("Suite", (DrafterContract,), {"drafter": "ngram", "options": options})
    return suite().build()


def guess(drafter, tokens, count):
    (found,) = drafter.propose([0], [np.array(tokens, np.int32)], [count])
    return found.tolist()


def plainly(tokens, count, options):
    """By trying every length, longest first, and every place, latest first."""
    tokens = tokens[-options.reach :]
    for length in range(options.max_match, options.min_match - 1, -1):
        wanted = tokens[len(tokens) - length :]
        if len(wanted) < length:
            continue
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == wanted:
                return _followed(tokens, end, count)
    return []


def _followed(tokens, end, count):
    """The tokens that follow; beyond the end of the text it continues with the draft itself."""
    said = list(tokens)
    for place in range(end, end + count):
        said.append(said[place])
    return said[len(tokens) :]


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    count=st.integers(1, 9),
    lengths=st.tuples(st.integers(1, 5), st.integers(1, 5)).map(sorted),
    reach=st.integers(2, 40),
)
def test_it_is_what_a_plain_search_finds(tokens, count, lengths, reach):
    options = {"min_match": lengths[0], "max_match": lengths[1], "reach": reach}
    expected = plainly(tokens, count, NgramOptions(**options))
    assert guess(build(**options), tokens, count) == expected


def test_the_longest_match_wins_over_a_later_one():
    assert guess(build(), [1, 2, 3, 7, 2, 3, 9, 1, 2, 3], 1) == [7]


def test_the_latest_of_equal_matches_wins():
    assert guess(build(), [5, 1, 2, 7, 6, 1, 2, 8, 4, 1, 2], 1) == [8]


def test_a_short_period_is_repeated():
    assert guess(build(), [1, 2, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]


def test_nothing_is_guessed_without_a_match():
    assert guess(build(), [1, 2, 3, 4], 5) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"min_match": 0}, "min_match=0"),
        ({"max_match": 33}, "max_match=33"),
        ({"reach": 1}, "reach=1"),
        ({"min_match": 4, "max_match": 3}, "max_match=3 is less than min_match=4"),
        ({"depth": 3}, "depth"),
    ],
)
def test_options_out_of_bounds_are_refused(options, text):
    with pytest.raises(PluginError, match=text):
        build(**options)

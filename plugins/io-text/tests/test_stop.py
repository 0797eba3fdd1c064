"""Stop strings across token borders, against a naive search."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenonry_io_text.stop import StopDetokenizer, StopString


class Pieces:
    """A stream whose token `i` is the text `pieces[i]`; the last token stays back until the end when `holds_last`."""

    def __init__(self, pieces, *, holds_last=False):
        self.pieces, self.holds_last = pieces, holds_last

    def feed(self, token_id):
        return "" if self.holds_last and token_id == len(self.pieces) - 1 else self.pieces[token_id]

    def flush(self):
        return self.pieces[-1] if self.holds_last else ""


def naive(pieces, stops, include, min_tokens):
    """(text, stop, tokens used): look at every character's end, in order; the longest stop string that ends there."""
    text = ""
    for count, piece in enumerate(pieces, 1):
        for char in piece:
            text += char
            if count > min_tokens:
                found = max((stop for stop in stops if text.endswith(stop)), key=len, default=None)
                if found is not None:
                    return (text if include else text[: -len(found)]), found, count
    return text, None, len(pieces)


words = st.text(alphabet="ab", max_size=4)
stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=6), min_size=1, max_size=4)


@given(
    pieces=st.lists(words, max_size=12),
    stops=stop_lists,
    include=st.booleans(),
    min_tokens=st.integers(0, 4),
)
@example(pieces=["a", "b", "a", "b", "c"], stops=["abac", "bab"], include=False, min_tokens=0)
@example(pieces=["aab"], stops=["ab", "aab"], include=False, min_tokens=0)
@example(pieces=["ab", "ab", "aba"], stops=["ababa"], include=True, min_tokens=2)
def test_same_text_as_a_naive_search(pieces, stops, include, min_tokens):
    text, stop, used = naive(pieces, stops, include, min_tokens)
    detokenizer = StopDetokenizer(Pieces(pieces), stops, include=include, min_tokens=min_tokens)
    given_out = "".join(detokenizer.push([index]) for index in range(len(pieces)))
    assert (given_out + detokenizer.finish(), detokenizer.stop_reason) == (text, stop)
    whole = StopDetokenizer(Pieces(pieces), stops, include=include, min_tokens=min_tokens)
    assert whole.push(range(len(pieces))) + whole.finish() == text
    assert whole.consumed == used
    assert whole.stop_reason == stop


@given(pieces=st.lists(words, max_size=12), stops=stop_lists)
def test_holds_back_exactly_what_may_become_a_stop_string(pieces, stops):
    detokenizer = StopDetokenizer(Pieces(pieces), stops)
    given_out, seen = "", ""
    for index, piece in enumerate(pieces):
        given_out += detokenizer.push([index])
        seen += piece
        if detokenizer.stop_reason is not None:
            break
        ends = [seen[at:] for at in range(len(seen))]
        may = max(
            (len(end) for end in ends if any(stop.startswith(end) for stop in stops)), default=0
        )
        assert given_out == seen[: len(seen) - may]


@given(
    stop=st.text(alphabet="ab", min_size=1, max_size=8), text=st.text(alphabet="ab", max_size=30)
)
def test_stop_string_finds_every_occurrence(stop, text):
    follower = StopString(stop)
    ends = [at for at, char in enumerate(text, 1) if follower.advance(char)]
    assert ends == [at for at in range(1, len(text) + 1) if text[:at].endswith(stop)]


def test_long_stop_strings_cost_no_time_at_the_start():
    """Sixty-four strings of a thousand characters are allowed; nothing is worked out before it is needed."""
    detokenizer = StopDetokenizer(
        Pieces(["b"]), ["a" * 1000 + chr(200 + index) for index in range(64)]
    )
    assert detokenizer.push([0]) == "b"
    assert all(len(stop._borders) == 1 for stop in detokenizer._stops)


def test_consumed_counts_the_token_that_completes_the_stop_string():
    detokenizer = StopDetokenizer(Pieces(["x", "EN", "D!", "y"]), ["END"])
    assert detokenizer.push([0, 1, 2, 3]) == "x"
    assert (detokenizer.consumed, detokenizer.stop_reason) == (3, "END")
    assert (detokenizer.push([3]), detokenizer.consumed, detokenizer.finish()) == ("", 0, "")


def test_included_stop_string_ends_the_text():
    detokenizer = StopDetokenizer(Pieces(["x", "EN", "D!"]), ["END"], include=True)
    assert [detokenizer.push([index]) for index in range(3)] == ["x", "", "END"]


@pytest.mark.parametrize(
    ("min_tokens", "expected"), [(0, "x"), (1, "x"), (2, "x"), (3, "xENDEND!"), (9, "xENDEND!")]
)
def test_min_tokens(min_tokens, expected):
    """A stop string ends the output only if a token after the first `min_tokens` completes it."""
    detokenizer = StopDetokenizer(Pieces(["xE", "N", "DEND!"]), ["END"], min_tokens=min_tokens)
    assert detokenizer.push([0, 1, 2]) + detokenizer.finish() == expected


def test_the_rest_comes_with_finish():
    detokenizer = StopDetokenizer(Pieces(["aE", "N", "�"], holds_last=True), ["END"])
    assert detokenizer.push([0, 1, 2]) == "a"
    assert detokenizer.finish() == "EN�"
    assert detokenizer.stop_reason is None

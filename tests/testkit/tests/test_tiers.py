"""Cases that run at night are marked, and none is lost."""

from __future__ import annotations

from itertools import product

from tenonry_testkit.tiers import nightly_unless


def test_cases_that_are_not_usual_are_marked():
    found = nightly_unless(lambda each: each > 1, [1, 2, 3])
    assert [case.values for case in found] == [(1,), (2,), (3,)]
    assert [[mark.name for mark in case.marks] for case in found] == [["nightly"], [], []]


def test_each_value_of_a_case_is_an_argument():
    found = nightly_unless(lambda number, text: number == len(text), product((1, 2), ("a", "bb")))
    assert [bool(case.marks) for case in found] == [False, True, True, False]

"""Cases that run at night are marked, and none is lost."""

from __future__ import annotations

from itertools import product

import pytest

from tenonry_testkit.tiers import diagonal, nightly_unless


def test_cases_that_are_not_usual_are_marked():
    found = nightly_unless(lambda each: each > 1, [1, 2, 3])
    assert [case.values for case in found] == [(1,), (2,), (3,)]
    assert [[mark.name for mark in case.marks] for case in found] == [["nightly"], [], []]


def test_each_value_of_a_case_is_an_argument():
    found = nightly_unless(lambda number, text: number == len(text), product((1, 2), ("a", "bb")))
    assert [bool(case.marks) for case in found] == [False, True, True, False]


@pytest.mark.parametrize(("rows", "columns"), [(5, 3), (3, 5), (4, 4), (1, 2)])
def test_usual_pairs_of_a_diagonal_hold_each_value(rows: int, columns: int):
    found = diagonal(range(rows), "abcde"[:columns])
    assert [case.values for case in found] == list(product(range(rows), "abcde"[:columns]))
    usual = [case.values for case in found if not case.marks]
    assert {one for one, _ in usual} == set(range(rows))
    assert {other for _, other in usual} == set("abcde"[:columns])
    assert len(usual) == max(rows, columns)

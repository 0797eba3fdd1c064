"""Number of draft tokens, over passes with made-up times."""

from __future__ import annotations

import pytest

from tenonry_drafters.controller import (
    LOSS,
    MAX_ROWS,
    MAX_TOKENS,
    MOST_CREDIT,
    READING_SHARE,
    DraftController,
)

PLAIN_S = 1.0


class Run:
    """One or more rows of one worker; `asking_s` and `verifying_s` beyond a plain pass, and a row is right or not."""

    def __init__(self, num_rows=1, asking_s=0.0, verifying_s=0.5, unseen_s=0.0, length=1):
        self.controller = DraftController(8, 7, lambda: self.seconds)
        self.rows = list(range(num_rows))
        self.lengths = [length] * num_rows
        self.asking_s, self.verifying_s, self.unseen_s = asking_s, verifying_s, unseen_s
        self.seen = [0] * num_rows
        self.seconds = 0.0
        self.num_drafted = 0

    @property
    def num_tokens(self):
        return self.lengths[0]

    def step(self, is_right, proposes=True):
        wanted = self.controller.most(self.rows, [9] * len(self.rows), self.lengths)
        asked = [row for row, count in zip(self.rows, wanted, strict=True) if count]
        if asked:
            unseen = sum(self.lengths[row] - self.seen[row] for row in asked)
            took = self.asking_s + unseen * self.unseen_s
            self.controller.asked(asked, [self.lengths[row] for row in asked], took)
            self.seconds += took
            for row in asked:
                self.seen[row] = self.lengths[row]
        if asked and proposes:
            found = {row: (wanted[row], wanted[row] if is_right else 0) for row in asked}
            self.controller.verified(len(self.rows), PLAIN_S + self.verifying_s, found)
            self.seconds += PLAIN_S + self.verifying_s
            self.num_drafted += 1
            gained = {row: right for row, (_, right) in found.items()}
        else:
            self.controller.plain(self.rows, PLAIN_S)
            self.seconds += PLAIN_S
            gained = {}
        for row in self.rows:
            self.lengths[row] += 1 + gained.get(row, 0)
        return wanted


@pytest.mark.parametrize("asking_s", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("verifying_s", [0.01, 0.5, 2.0])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_text_that_is_guessed_wrongly_loses_little(asking_s, verifying_s, num_rows):
    run = Run(num_rows, asking_s, verifying_s)
    for _ in range(1500):
        run.step(is_right=False)  # what drafts take is known then
    before = run.seconds
    num_before = run.num_drafted
    for count in range(1, 3000):
        run.step(is_right=False)
        lost = (run.seconds - before) / PLAIN_S - count
        assert lost <= 1.1 * (LOSS * count + asking_s + verifying_s)
    assert run.num_drafted > num_before


def test_a_drafter_that_finds_nothing_loses_little():
    """Looking takes time as well."""
    run = Run(asking_s=0.2)
    for _ in range(2000):
        run.step(is_right=False, proposes=False)
    assert run.seconds <= 2000 / 0.97


@pytest.mark.parametrize("asking_s", [0.0, 1.5])
def test_text_that_is_guessed_rightly_is_drafted_for(asking_s):
    run = Run(asking_s=asking_s)
    for _ in range(200):
        run.step(is_right=True)
    assert run.num_tokens > 2 * run.seconds
    assert run.num_drafted > 190
    assert run.num_drafted < 200, "a plain pass is timed again now and then"


def test_guesses_that_take_longer_than_they_save_end():
    """A model as large as the one that is served, always right: each token takes as long as it saves."""
    run = Run(asking_s=7.5, verifying_s=1.0)
    for _ in range(1000):
        run.step(is_right=True)
    assert run.seconds <= run.num_tokens / 0.95
    assert run.num_drafted < 50


def test_time_of_guessing_counts():
    cheap, dear = Run(), Run(asking_s=2.0)
    for run in (cheap, dear):
        for _ in range(300):
            run.step(is_right=False)
    assert dear.num_drafted < cheap.num_drafted


def test_what_was_gained_is_not_spent_for_long():
    run = Run()
    for _ in range(50):
        run.step(is_right=True)
    before = run.num_drafted
    for _ in range(50):
        run.step(is_right=False)
    assert run.num_drafted - before <= 2 * (MOST_CREDIT + 1) / run.verifying_s


def test_a_pass_that_others_delayed_stops_nothing_for_long():
    run = Run()
    for _ in range(50):
        run.step(is_right=True)
    run.verifying_s = 300.0
    run.step(is_right=True)
    run.verifying_s = 0.5
    wanted = [run.step(is_right=True)[0] for _ in range(5)]
    assert min(wanted) > 0


def test_a_slow_first_pass_is_not_what_others_are_compared_with():
    """A pass with drafts computes more than one without."""
    run = Run(asking_s=0.5, verifying_s=0.1)
    run.controller.plain([0], 20 * PLAIN_S)
    for _ in range(60):
        run.step(is_right=False)
    assert run.num_drafted < 25


class TestReading:
    """A drafter that reads 1000 tokens before it can guess."""

    def make(self):
        run = Run(unseen_s=0.01, length=1000)
        run.step(is_right=False)
        run.step(is_right=False)  # what reading takes is known afterwards
        assert run.num_drafted == 1
        run.controller.enter(0)
        run.seen[0] = 0
        run.lengths[0] = 1000
        return run

    def test_waits_until_it_is_little_beside_the_rest(self):
        run = self.make()
        before = run.seconds
        while not run.step(is_right=True)[0]:
            pass
        reading_s = run.lengths[0] * 0.01
        assert run.seconds - before == pytest.approx((reading_s - 1) / READING_SHARE, rel=0.1)

    def test_waits_for_nothing_where_the_prompt_took_long(self):
        run = self.make()
        run.seconds += 400.0  # before its first token
        assert run.step(is_right=True)[0] > 0

    def test_decides_nothing_afterwards(self):
        run = self.make()
        while not run.step(is_right=True)[0]:
            pass
        assert all(run.step(is_right=True)[0] for _ in range(20))

    def test_a_short_text_is_begun_at_once(self):
        run = self.make()
        run.lengths[0] = 50
        assert run.step(is_right=True)[0] > 0


class TestBounds:
    def test_more_rows_than_are_drafted_for(self):
        run = Run(MAX_ROWS + 1)
        assert all(not any(run.step(is_right=True)) for _ in range(5))

    def test_tokens_of_a_pass(self):
        run = Run(MAX_ROWS)
        wanted = [run.step(is_right=True) for _ in range(20)]
        assert max(map(sum, wanted)) == MAX_TOKENS - MAX_ROWS

    def test_the_first_pass_of_so_many_rows_is_plain(self):
        """It is the baseline for others."""
        run = Run(2)
        assert run.step(is_right=True) == [0, 0]
        assert min(run.step(is_right=True)) > 0
        run.rows = [0]
        assert run.step(is_right=True) == [0]

    def test_slots_that_are_left(self):
        controller = DraftController(2, 7)
        controller.plain([0, 1], PLAIN_S)
        assert controller.most([0, 1], [1, 3], [5, 5]) == [0, 2]

    def test_depth_follows_what_was_right(self):
        controller = DraftController(1, 7)
        controller.plain([0], PLAIN_S)
        depths = []
        for num_accepted in (3, 6, 7, 7, 2, 0):
            depths += controller.most([0], [9], [5])
            controller.asked([0], [5], 0.0)
            controller.verified(1, PLAIN_S, {0: (depths[-1], num_accepted)})
        assert depths == [3, 6, 7, 7, 7, 3]

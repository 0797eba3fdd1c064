"""Multi-token steps: their conditions, their length, and their tokens."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry.errors import PluginError
from tenonry.outputs import FinishReason
from tenonry.sampling_params import StructuredOutput
from tenonry.step import ModelRunnerOutput, RowFailure
from tenonry_testkit.fakes.scheduler import ReferenceScheduler
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.spec import HarnessSpec


def rounds_of(harness):
    """The tokens that the rows of each step with rows may sample."""
    return [output.round_tokens for output in harness.outputs if len(output.row)]


@pytest.fixture
def make_harness():
    def make(round_tokens=4, **spec):
        spec = {"max_model_len": 64, "num_blocks": 40, **spec}
        return SchedulerHarness(ReferenceScheduler, HarnessSpec(round_tokens=round_tokens, **spec))

    return make


class TestWhen:
    def test_the_last_round_ends_at_max_tokens(self, make_harness):
        """One step for the prompt and one to measure the time per token, then multi-token steps."""
        harness = make_harness()
        harness.add([1, 2, 3], 12)
        harness.drain()
        assert rounds_of(harness) == [1, 1, 4, 4, 2]

    def test_rows_end_with_the_first_that_is_near_its_limit(self, make_harness):
        harness = make_harness()
        harness.add([1, 2, 3], 5)
        harness.add([4, 5, 6], 9)
        harness.drain()
        assert rounds_of(harness) == [1, 1, 3, 4]

    def test_none_by_default(self, make_harness):
        harness = make_harness(1)
        harness.add([1, 2, 3], 6)
        harness.drain()
        assert rounds_of(harness) == [1] * 6

    @pytest.mark.parametrize("spec", [{"depth": 2}, {"feeds_back": False}])
    def test_none_where_steps_overlap_or_tokens_are_not_fed_back(self, make_harness, spec):
        harness = make_harness(**spec)
        harness.add([1, 2, 3], 6)
        harness.drain()
        assert max(rounds_of(harness)) == 1

    def test_none_while_a_row_needs_the_engine_after_every_token(self, make_harness):
        harness = make_harness()
        harness.add([1, 2, 3], 6, logprobs=1)
        harness.add([4, 5, 6], 10)
        harness.drain()
        assert max(rounds_of(harness)[:6]) == 1
        assert rounds_of(harness)[-1] > 1

    def test_none_while_a_request_waits(self, make_harness):
        harness = make_harness(max_num_seqs=1)
        harness.add([1, 2, 3], 6)
        harness.add([4, 5, 6], 9)
        harness.drain()
        assert rounds_of(harness)[:6] == [1] * 6
        assert 4 in rounds_of(harness)[6:]

    def test_a_newcomer_runs_in_the_step_after_the_round(self, make_harness):
        harness = make_harness()
        harness.add([1, 2, 3], 30)
        for _ in range(3):
            harness.turn()
        assert rounds_of(harness)[-1] == 4
        newcomer = harness.add([4, 5, 6], 4)
        harness.turn()
        assert len(newcomer.token_ids) == 1
        harness.drain()

    def test_none_where_blocks_are_short(self, make_harness):
        """No request is preempted for a multi-token step."""
        harness = make_harness(8, max_model_len=16, num_blocks=4)
        harness.add([1, 2, 3], 12)
        harness.drain()
        assert harness.step_checker.num_preemptions == 0


class TestHowMany:
    """A newcomer waits at most 5 ms longer."""

    @pytest.mark.parametrize(
        ("token_s", "most"), [(0.0001, 8), (0.001, 6), (0.002, 3), (0.0049, 2), (0.0051, 1)]
    )
    def test_as_many_as_are_decoded_in_5_ms_beyond_one(self, make_harness, token_s, most):
        harness = make_harness(8)
        harness.add([1, 2, 3], 40)
        while harness.scheduler.has_requests() and harness.launch():
            harness.clock.advance(token_s * harness.outputs[-1].round_tokens)
            harness.deliver()
        assert max(rounds_of(harness)) == most

    def test_one_longer_time_counts_little_and_lasting_ones_soon(self, make_harness):
        harness = make_harness(8)
        harness.add([1, 2, 3], 60)
        lengths = []
        for token_s in [0.001] * 3 + [0.003] + [0.001] * 2 + [0.005] * 5:
            harness.launch()
            lengths.append(harness.outputs[-1].round_tokens)
            harness.clock.advance(token_s * lengths[-1])
            harness.deliver()
        assert lengths == [1, 1, 6, 6, 4, 4, 4, 3, 2, 2, 2]

    def test_more_rows_are_timed_anew(self, make_harness):
        harness = make_harness()
        harness.add([1, 2, 3], 30)
        for _ in range(3):
            harness.turn()
        harness.add([4, 5, 6], 30)
        for _ in range(3):
            harness.turn()
        assert rounds_of(harness) == [1, 1, 4, 1, 1, 4]


class TestTokens:
    def test_a_stop_id_ends_a_row_within_the_round(self, make_harness):
        """The other row continues; both have the tokens of a solo run."""
        solo = make_harness(1)
        alone = solo.add([1, 2, 3], 20)
        solo.drain()
        harness = make_harness(8)
        stopped = harness.add([1, 2, 3], 20, stop_token_ids=[alone.token_ids[4]])
        other = harness.add([4, 5, 6], 20)
        harness.drain()
        assert stopped.token_ids == alone.token_ids[:5]
        assert stopped.finished.reason is FinishReason.STOP
        assert len(other.token_ids) == 20

    def test_an_abort_drops_the_tokens_of_the_round(self, make_harness):
        harness = make_harness()
        entry = harness.add([1, 2, 3], 30)
        other = harness.add([4, 5, 6], 30)
        for _ in range(2):
            harness.turn()
        harness.launch()
        assert rounds_of(harness)[-1] == 4
        harness.abort([entry.handle])
        harness.deliver()
        assert len(entry.token_ids) == 2
        assert len(other.token_ids) == 6
        harness.drain()

    def test_a_failure_within_a_round_ends_the_request(self, make_harness):
        harness = make_harness()
        failing = harness.add([1, 2, 3], 30)
        other = harness.add([4, 5, 6], 30)
        for _ in range(2):
            harness.turn()
        harness.fail(failing, RowFailure.NUMERICAL)
        harness.drain()
        assert failing.finished.reason is FinishReason.ERROR
        assert len(other.token_ids) == 30

    def test_short_rounds_go_on_where_they_ended(self, make_harness):
        harness = make_harness(8, short_rounds=3)
        entries = [harness.add([1, 2, number], 30) for number in range(3)]
        harness.drain()
        assert [len(entry.token_ids) for entry in entries] == [30] * 3
        assert max(rounds_of(harness)) == 8

    def test_clients_get_their_own(self, make_harness):
        harness = make_harness()
        entries = [harness.add([1, 2, number], 17 - number, client=number) for number in range(3)]
        harness.drain()
        assert [len(entry.token_ids) for entry in entries] == [17, 16, 15]


DRAFTED = (("drafter", "ngram"),)


class TestDrafts:
    @pytest.mark.parametrize("config", [(), DRAFTED])
    def test_rows_with_a_grammar_have_rounds(self, make_harness, config):
        """The validator watches, too."""
        harness = make_harness(config=config)
        harness.add([1, 2, 3], 12, structured_output=StructuredOutput(json="{}"))
        harness.add([4, 5, 6], 12)
        harness.drain()
        assert max(rounds_of(harness)) == 4

    @pytest.mark.parametrize("short", [0, 3])
    def test_log_probabilities_go_to_their_clients(self, make_harness, short):
        """The ledger compares each line with its token."""
        harness = make_harness(config=DRAFTED, short_rounds=short)
        for number in range(4):
            asked = {"logprobs": number} if number else {}
            harness.add([1, 2, number], 30 - number, client=number % 2, **asked)
        harness.drain()
        assert max(rounds_of(harness)) == 4

    def test_are_counted_once(self, make_harness):
        harness = make_harness()
        harness.add([1, 2, 3], 30)
        for _ in range(2):
            harness.turn()
        scheduler = harness.scheduler
        for drafts, tokens, accepted in ((2, 5, 1), (1, 3, 3)):
            output = scheduler.schedule()
            result = ModelRunnerOutput(
                step_id=output.step_id,
                row=output.row,
                offsets=np.array([0, output.round_tokens], np.int32),
                token_ids=np.ones(output.round_tokens, np.int32),
                num_drafts=drafts,
                num_drafted=tokens,
                num_accepted=accepted,
            )
            scheduler.update_from_output(output, result)
        counts = [
            (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens)
            for stats in (scheduler.make_stats(), scheduler.make_stats())
        ]
        assert counts == [(3, 8, 4), (0, 0, 0)]


class TestWrongAnswers:
    @pytest.mark.parametrize(
        ("row", "offsets", "num_tokens"),
        [
            ([0, 1], [0, 5, 9], 9),
            ([0, 1], [0, 0, 4], 4),
            ([0, 1], [0, 4, 8], 7),
            ([0, 1], [0, 4], 4),
            ([0], [0, 4], 4),
            ([0, 0], [0, 4, 8], 8),
            ([0, 2], [0, 4, 8], 8),
        ],
        ids=["too many", "none", "cut off", "no end", "a row less", "a row twice", "a strange row"],
    )
    def test_are_refused(self, make_harness, row, offsets, num_tokens):
        harness = make_harness()
        for number in range(2):
            harness.add([1, 2, number], 30)
        for _ in range(2):
            harness.turn()
        output = harness.scheduler.schedule()
        assert output.round_tokens == 4
        result = ModelRunnerOutput(
            step_id=output.step_id,
            row=np.array(row, np.int32),
            offsets=np.array(offsets, np.int32),
            token_ids=np.ones(num_tokens, np.int32),
        )
        with pytest.raises(PluginError, match="a round of 2 rows"):
            harness.scheduler.update_from_output(output, result)

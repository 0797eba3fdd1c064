"""Every wrong delivery is found when it happens, and named by the line of the contract that it breaks."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry.messages import (
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishedOutput,
    ScheduledOutput,
    make_handle,
)
from tenonry.outputs import FinishReason
from tenonry.request import Request
from tenonry.sampling_params import SamplingParams
from tenonry.step import TokenLogprobs
from tenonry_testkit import rules
from tenonry_testkit.fakes.tokens import Completion
from tenonry_testkit.ledger import Entry, Ledger, RuleBroken, as_ids

HANDLE = make_handle(1, 7)
STOP = Completion([4, 5, 6], FinishReason.STOP, 6)


def make_ledger(expected=STOP, *, has_started=True):
    source = EngineCoreRequest(
        handle=HANDLE,
        request_id="r",
        prompt_token_ids=np.array([1, 2], np.int32),
        sampling_params=SamplingParams(max_tokens=9),
    )
    ledger = Ledger()
    ledger.add(Entry(Request(source, 1, 0.0, 64), expected, 1))
    ledger.entries[HANDLE].started_at = 0.5
    if has_started:
        ledger.take(news(scheduled=[ScheduledOutput(HANDLE, 0.5, 1)]))
    return ledger


def news(*token_ids, client=1, handle=HANDLE, **parts):
    count = len(token_ids)
    return {
        client: EngineCoreOutputs(
            handles=np.array([handle] * bool(count), np.uint64),
            token_ids=np.array(token_ids, np.int32),
            offsets=np.array([0, count] if count else [0], np.int32),
            **parts,
        )
    }


def finished(reason=FinishReason.STOP, stop_token_id=6, **fields):
    return [FinishedOutput(HANDLE, reason, stop_token_id, **fields)]


def test_right_deliveries_pass():
    ledger = make_ledger(has_started=False)
    assert ledger.take(news(4, scheduled=[ScheduledOutput(HANDLE, 0.5, 1)])) == []
    assert [entry.handle for entry in ledger.take(news(5, 6, finished=finished()))] == [HANDLE]
    assert ledger.live == []
    assert ledger.summary() == {
        "stop": 1,
        "length": 0,
        "abort": 0,
        "error": 0,
        "live": 0,
        "tokens": 3,
    }


@pytest.mark.parametrize(
    ("deliveries", "rule"),
    [
        ([news(5)], rules.RIGHT_TOKENS),
        ([news(4), news(4)], rules.RIGHT_TOKENS),
        ([news(4, 5, 6, 7)], rules.RIGHT_ENDING),
        ([news(4, 5, finished=finished())], rules.RIGHT_ENDING),
        ([news(4, 5, 6, finished=finished(FinishReason.LENGTH, None))], rules.RIGHT_ENDING),
        ([news(4, 5, 6, finished=finished(stop_token_id=5))], rules.RIGHT_ENDING),
        ([news(4, finished=finished(FinishReason.ERROR, None, error="oh"))], rules.RIGHT_ENDING),
        ([news(finished=finished(FinishReason.ABORT, None))], rules.ONE_OUTCOME),
        ([news(4, 5, 6, finished=finished() * 2)], rules.ONE_OUTCOME),
        ([news(4, 5, 6, finished=finished()), news(7)], rules.NO_OUTPUT_AFTER_THE_END),
        ([news(4, client=0)], rules.OWN_CLIENT),
        ([news(4, handle=HANDLE + 1)], rules.OWN_CLIENT),
        ([news(scheduled=[ScheduledOutput(HANDLE, 0.5, 0)] * 2)], rules.OWN_CLIENT),
        ([news(scheduled=[ScheduledOutput(HANDLE, 0.5, 2)])], rules.RIGHT_TOKENS),
        ([news(scheduled=[ScheduledOutput(HANDLE, 0.9, 0)])], rules.COUNTS),
        (
            [
                news(
                    4,
                    logprobs=TokenLogprobs(
                        as_ids([0]), as_ids([[4, 5]]), np.zeros((1, 2)), as_ids([1])
                    ),
                )
            ],
            rules.OWN_LOGPROBS,
        ),
    ],
)
def test_wrong_delivery_breaks_its_rule(deliveries, rule):
    is_start = any(outputs.scheduled for each in deliveries for outputs in each.values())
    ledger = make_ledger(has_started=not is_start)
    for delivery in deliveries[:-1]:
        ledger.take(delivery)
    with pytest.raises(RuleBroken) as broken:
        ledger.take(deliveries[-1])
    assert broken.value.rule == rule


def test_malformed_columns_are_found():
    outputs = EngineCoreOutputs(
        handles=np.array([HANDLE], np.uint64), token_ids=np.array([4, 5], np.int32)
    )
    with pytest.raises(RuleBroken, match="1 handles, 2 tokens"):
        make_ledger().take({1: outputs})


def test_error_is_right_where_it_was_caused_and_has_a_text():
    for text, passes in (("broken", True), (None, False)):
        ledger = make_ledger()
        ledger.entries[HANDLE].may_fail = True
        delivery = news(finished=finished(FinishReason.ERROR, None, error=text))
        if passes:
            assert len(ledger.take(delivery)) == 1
        else:
            with pytest.raises(RuleBroken, match="without a text"):
                ledger.take(delivery)


def test_ending_from_outside_happens_once():
    ledger = make_ledger()
    ledger.end_from_outside(HANDLE, FinishReason.ABORT)
    assert ledger.summary()["abort"] == 1
    with pytest.raises(RuleBroken, match=rules.ONE_OUTCOME):
        ledger.end_from_outside(HANDLE, FinishReason.ABORT)

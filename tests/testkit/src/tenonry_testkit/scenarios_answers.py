"""Scenarios of the scheduler suite about worker results: those that do not fit their step, and pooled ones."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from tenonry.errors import PluginError
from tenonry.step import ModelRunnerOutput, RowFailure, SchedulerOutput
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.rules import ANSWERS_FIT, OWN_POOLED, expect
from tenonry_testkit.scenarios_endings import MakeHarness
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Send, send

Spoil = Callable[[SchedulerOutput, ModelRunnerOutput], ModelRunnerOutput]
PLAIN = HarnessSpec(num_blocks=40, max_num_batched_tokens=8)
SEVERAL = HarnessSpec(num_blocks=40, round_tokens=6)
MAX_STEPS = 12


def _replaced(
    result: ModelRunnerOutput, rows: list[int], tokens: list[list[int]], extra: int = 0
) -> ModelRunnerOutput:
    """The result with other rows and tokens; `extra` tokens belong to no row."""
    counts = [len(each) for each in tokens]
    flat = [token for each in tokens for token in each] + [1] * extra
    return msgspec.structs.replace(
        result,
        row=np.array(rows, np.int32),
        offsets=np.cumsum([0, *counts], dtype=np.int32),
        token_ids=np.array(flat, np.int32),
    )


def _content(result: ModelRunnerOutput) -> tuple[list[int], list[list[int]]]:
    parts = np.split(result.token_ids, result.offsets[1:-1])
    return result.row.tolist(), [part.tolist() for part in parts]


def _token_too_many(output: SchedulerOutput, result: ModelRunnerOutput) -> ModelRunnerOutput:
    return _replaced(result, *_content(result), extra=1)


def _row_missing(output: SchedulerOutput, result: ModelRunnerOutput) -> ModelRunnerOutput:
    rows, tokens = _content(result)
    return _replaced(result, rows[1:], tokens[1:])


def _row_unasked(output: SchedulerOutput, result: ModelRunnerOutput) -> ModelRunnerOutput:
    """A row answers that computes a part of its prompt."""
    rows, tokens = _content(result)
    unasked = output.row[~output.samples].tolist()
    return _replaced(result, [*rows, *unasked], [*tokens, *([1] for _ in unasked)])


def _row_without_tokens(output: SchedulerOutput, result: ModelRunnerOutput) -> ModelRunnerOutput:
    rows, tokens = _content(result)
    return _replaced(result, rows, [[], *tokens[1:]])


def _more_than_allowed(output: SchedulerOutput, result: ModelRunnerOutput) -> ModelRunnerOutput:
    rows, tokens = _content(result)
    return _replaced(result, rows, [[1] * (output.round_tokens + 1), *tokens[1:]])


def _row_of_no_request(output: SchedulerOutput, result: ModelRunnerOutput) -> ModelRunnerOutput:
    rows, tokens = _content(result)
    other = next(row for row in range(len(rows) + 1) if row not in rows)
    return _replaced(result, [other, *rows[1:]], tokens)


def _rows_of_others(output: SchedulerOutput, result: ModelRunnerOutput) -> ModelRunnerOutput:
    """No place of the result names the row of that place."""
    rows, tokens = _content(result)
    return _replaced(result, [row + 1 for row in rows], tokens)


def _row_twice(output: SchedulerOutput, result: ModelRunnerOutput) -> ModelRunnerOutput:
    rows, tokens = _content(result)
    return _replaced(result, [rows[0], *rows], [tokens[0], *tokens])


def _row_fails_beside_an_empty_one(
    output: SchedulerOutput, result: ModelRunnerOutput
) -> ModelRunnerOutput:
    """Each row of the step is named once, as it should be."""
    rows, tokens = _content(result)
    wrong = _replaced(result, rows[1:], [[], *tokens[2:]])
    failed = np.array(rows[:1], np.int32)
    code = np.full(1, RowFailure.SAMPLING, np.int32)
    return msgspec.structs.replace(wrong, failed_row=failed, failed_code=code)


WRONG: tuple[Spoil, ...] = (_token_too_many, _row_missing, _row_unasked)
WRONG_ROUNDS: tuple[Spoil, ...] = (
    _token_too_many,
    _row_missing,
    _row_without_tokens,
    _more_than_allowed,
    _row_of_no_request,
    _rows_of_others,
    _row_twice,
    _row_fails_beside_an_empty_one,
)


def wrong_answers_are_rejected(make_harness: MakeHarness) -> None:
    """Each wrong result of a step raises PluginError; those of steps of several tokens, where there are such steps."""
    for spoil in WRONG:
        harness = make_harness(PLAIN)
        send(harness, Send(max_tokens=20))
        send(harness, Send(family=1, length=31))  # a prompt of several steps
        if _reach(harness, _is_mixed):
            _reject(harness, spoil)
    for spoil in WRONG_ROUNDS:
        harness = make_harness(SEVERAL)
        for number in range(3):
            send(harness, Send(family=number, max_tokens=20))
        if _reach(harness, lambda output: output.round_tokens > 1):
            _reject(harness, spoil)


def _is_mixed(output: SchedulerOutput) -> bool:
    return 0 < np.count_nonzero(output.samples) < len(output.row)


def _reach(harness: SchedulerHarness, is_wanted: Callable[[SchedulerOutput], bool]) -> bool:
    """Run until a step in flight is the wanted one. False if there is none."""
    for _ in range(MAX_STEPS):
        if not harness.launch():
            return False
        if is_wanted(harness.in_flight[-1][0]):
            return True
        harness.deliver()
    return False


def _reject(harness: SchedulerHarness, spoil: Spoil) -> None:
    output, future = harness.in_flight[-1]
    wrong = spoil(output, future.result())
    try:
        harness.scheduler.update_from_output(output, wrong)
    except PluginError:
        return
    detail = "step {} of rows {} was answered with {}, which was taken"
    expect(False, ANSWERS_FIT, detail, output.step_id, output.row.tolist(), wrong)


def pooled_results_are_delivered(make_harness: MakeHarness, depth: int) -> None:
    """A request ends with what the worker pooled in its last step, among others that end or continue."""
    harness = make_harness(HarnessSpec(depth=depth, num_blocks=40))
    entries = [
        send(harness, Send(family=number, length=3 + number, max_tokens=1 + number % 2))
        for number in range(6)
    ]
    while harness.scheduler.has_requests():
        if harness.can_launch and harness.launch():
            output, future = harness.in_flight[-1]
            result = future.result()
            pooled = {
                row: np.array([harness.step_checker.rows[row].entry.handle], np.float32)
                for row in output.row.tolist()
            }
            result.pooled = {row: pooled[row] for row in result.row.tolist()}
            if len(harness.in_flight) < depth:
                continue
        harness.deliver()
    harness.drain()
    for entry in entries:
        found = None if entry.finished is None else entry.finished.pooled
        is_own = found is not None and found.tolist() == [float(entry.handle)]
        expect(is_own, OWN_POOLED, "{} ended with {}", entry, found)

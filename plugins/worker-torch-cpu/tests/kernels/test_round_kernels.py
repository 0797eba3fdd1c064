"""The passes of a multi-token step in one kernel call: the same tokens and columns as one by one."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import worker_families
import worker_tools

from tenonry.sampling_params import SamplingParams
from tenonry.step import KNOWN_TO_WORKER, NewRow, RowFailure, SchedulerOutput
from tenonry_drafters.base import Drafter
from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_worker_torch.step_kernels import FoundKernels

pytestmark = pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built")

BLOCK_SIZE = 4
BLOCKS = 14  # of a row
LENGTHS = (9, 5, 12)
GREEDY = SamplingParams(temperature=0.0)
FAMILIES = ["llama", "qwen2", "qwen3", "mistral"]


@functools.cache
def model_of(family, kept="auto"):
    name, values = worker_families.FAMILIES[family]
    other = f"round-{family}"
    worker_families.OTHERS[other] = (name, values | {"intermediate_size": 128})
    module = worker_families.build(other, seed=worker_families.SEEDS[family], dtype=torch.bfloat16)
    return worker_tools.loaded(
        module, kernels=FoundKernels(CpuKernels(), True), kv_cache_dtype=kept
    )


def entering(stop_ids=((), (), ()), sampling=GREEDY):
    """The step in which all rows come with their prompts."""
    rows = np.arange(len(LENGTHS), dtype=np.int32)
    new = [
        NewRow(
            row=row,
            handle=row + 1,
            token_ids=np.random.default_rng(row).integers(0, 90, length).astype(np.int32),
            num_computed=0,
            num_output=0,
            block_ids=(np.arange(row * BLOCKS, (row + 1) * BLOCKS, dtype=np.int32),),
            sampling=sampling,
            stop_token_ids=stop_ids[row],
        )
        for row, length in enumerate(LENGTHS)
    ]
    return SchedulerOutput(
        step_id=0,
        new=new,
        row=rows,
        num_tokens=np.array(LENGTHS, np.int32),
        next_token=np.full(len(rows), KNOWN_TO_WORKER, np.int32),
        samples=np.ones(len(rows), np.bool_),
        generation=np.zeros(len(rows), np.int32),
        total_tokens=sum(LENGTHS),
    )


def round_of(rows, tokens):
    rows = np.array(rows, np.int32)
    return SchedulerOutput(
        step_id=1,
        row=rows,
        num_tokens=np.ones(len(rows), np.int32),
        next_token=np.full(len(rows), KNOWN_TO_WORKER, np.int32),
        samples=np.ones(len(rows), np.bool_),
        generation=np.zeros(len(rows), np.int32),
        total_tokens=len(rows),
        round_tokens=tokens,
    )


class Counted:
    """Several passes of a runner; `calls`: the tokens that each call may make."""

    def __init__(self, several):
        self.several = several
        self.accepts = several.accepts
        self.start = several.start
        self.calls = []

    def __call__(self, step_id, row, most, ends):
        self.calls.append(most)
        return self.several(step_id, row, most, ends)


def served(model, steps, *, is_one_by_one):
    """The answers to steps, the runner, and the kernel calls."""
    runner = worker_tools.runner(model, num_blocks=len(LENGTHS) * BLOCKS, block_size=BLOCK_SIZE)
    counted = Counted(runner.rounds.several)
    runner.rounds.several = None if is_one_by_one else counted
    return [runner.execute(step) for step in steps], runner, counted.calls


def columns(runner):
    state = runner.state
    ends = state.num_computed
    known = [state.token_ids[row, : ends[row] + 1].tolist() for row in range(len(LENGTHS))]
    return known, ends.tolist(), state.num_output.tolist()


def tokens_of(answer):
    return {
        int(row): answer.token_ids[begin:end].tolist()
        for row, begin, end in zip(answer.row, answer.offsets[:-1], answer.offsets[1:], strict=True)
    }


def assert_same(model, steps):
    """Both ways, and the answers."""
    one_by_one, first, _ = served(model, steps, is_one_by_one=True)
    at_once, second, calls = served(model, steps, is_one_by_one=False)
    for wanted, got in zip(one_by_one, at_once, strict=True):
        assert tokens_of(got) == tokens_of(wanted)
        assert got.failed_row.tolist() == wanted.failed_row.tolist()
        assert got.failed_code.tolist() == wanted.failed_code.tolist()
    assert columns(second) == columns(first)
    return at_once, calls


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_columns_are_those_of_passes_one_by_one(family):
    model = model_of(family)
    assert "1 × rounds" in model.chosen_kernels
    steps = [entering(), round_of([0, 1, 2], 8), round_of([2, 0], 5), round_of([1], 2)]
    answers, calls = assert_same(model, steps)
    assert calls == [8, 5, 2]
    assert {row: len(ids) for row, ids in tokens_of(answers[1]).items()} == {0: 8, 1: 8, 2: 8}


def test_kv_in_8_bits():
    steps = [entering(), round_of([0, 1, 2], 8), round_of([0, 1, 2], 8)]
    _, calls = assert_same(model_of("qwen3", "int8"), steps)
    assert calls == [8, 8]


def test_rows_end_with_a_token_that_ends_them():
    model = model_of("qwen3")
    free, _ = assert_same(model, [entering(), round_of([0, 1, 2], 8)])
    ids = tokens_of(free[1])
    third, first = ids[0][2], ids[2][1]
    stops = ((90, third), (), (first,))
    steps = [entering(stops), round_of([0, 1, 2], 8)]
    answers, calls = assert_same(model, steps)
    found = tokens_of(answers[1])
    assert calls == [8]
    assert found[0] == ids[0][: ids[0].index(third) + 1]
    assert found[1] == ids[1]
    assert found[2] == ids[2][: ids[2].index(first) + 1]


def test_rows_do_not_end_before_their_least_number_of_tokens():
    model = model_of("qwen3")
    free, _ = assert_same(model, [entering(), round_of([0, 1, 2], 8)])
    stops = tuple((ids[2],) for ids in tokens_of(free[1]).values())
    later = [entering(stops), round_of([0, 1, 2], 8)]
    short, _ = assert_same(model, later)
    assert len(tokens_of(short[1])[0]) <= 3
    for least in (3, 6):
        runner = worker_tools.runner(model, num_blocks=len(LENGTHS) * BLOCKS, block_size=BLOCK_SIZE)
        runner.execute(later[0])
        runner.rounds.min_output[:] = least
        ends = runner.rounds.row_ends(np.arange(3, dtype=np.int32))
        assert ends.free.tolist() == [least - 2] * 3  # each has one


def test_rows_that_draw_or_ask_for_more_go_one_by_one():
    model = model_of("qwen3")
    for sampling in (
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(temperature=0.0, logprobs=2),
    ):
        _, calls = assert_same(model, [entering(sampling=sampling), round_of([0, 1, 2], 4)])
        assert calls == []


def test_row_whose_logits_are_no_numbers_fails_alone():
    model = model_of("qwen3")

    def answers(*, is_one_by_one):
        made, runner, _ = served(model, [entering()], is_one_by_one=is_one_by_one)
        both = next(iter(model.layers.values())).kv_cache[0].both
        both[BLOCKS] = float("nan")  # the first block of row 1
        return [*made, runner.execute(round_of([0, 1, 2], 6))]

    one_by_one, at_once = (answers(is_one_by_one=flag) for flag in (True, False))
    assert at_once[1].failed_row.tolist() == one_by_one[1].failed_row.tolist() == [1]
    assert set(at_once[1].failed_code.tolist()) == {RowFailure.NUMERICAL}
    assert tokens_of(at_once[1]) == tokens_of(one_by_one[1])
    assert set(tokens_of(at_once[1])) == {0, 2}


def test_rows_that_fail_in_the_middle_of_a_round_lose_its_tokens(monkeypatch):
    """As with passes that run one by one: earlier tokens of the kernel are not returned."""
    model = model_of("qwen3")
    _, runner, _ = served(model, [entering()], is_one_by_one=False)
    whole = model.forward.rounds
    real = whole.kernel

    def failing(*given):
        made = real(*given)
        made.counts[1] = 2
        made.failed[1] = 1
        return made

    monkeypatch.setattr(model.forward, "rounds", whole._replace(kernel=failing))
    before = runner.state.num_computed.tolist()
    answer = runner.execute(round_of([0, 1, 2], 6))
    assert answer.failed_row.tolist() == [1]
    assert {row: len(ids) for row, ids in tokens_of(answer).items()} == {0: 6, 2: 6}
    after = runner.state.num_computed.tolist()
    assert [now - then for now, then in zip(after[:3], before[:3], strict=True)] == [6, 3, 6]


class Guesser(Drafter):
    """Guesses a token that is wrong nearly always."""

    name = "guesser"

    def enter(self, new):
        pass

    def propose(self, rows, histories, limits):
        return [np.array([1], np.int32)[:limit] for limit in limits]

    def accept(self, row, count, accepted):
        pass

    def leave(self, row):
        pass


@pytest.mark.parametrize("row", [0, 2])
def test_passes_are_run_at_once_while_a_drafter_rests(row, monkeypatch):
    """A row without credit is not drafted for: its multi-token steps are as fast as without a drafter, its tokens the
    same.
    """
    monkeypatch.setattr("tenonry_worker_torch.drafting.rounds.MAX_WAIT_S", 3600.0)
    model = model_of("qwen3")
    steps = [entering(), *(round_of([row], 4) for _ in range(6))]
    answers, _, _ = served(model, steps, is_one_by_one=True)
    wanted = [token for answer in answers[1:] for token in tokens_of(answer)[row]]
    runner = worker_tools.runner(model, num_blocks=len(LENGTHS) * BLOCKS, block_size=BLOCK_SIZE)
    runner.draft(Guesser.__new__(Guesser), 4)
    counted = runner.rounds.several = Counted(runner.rounds.several)
    runner.execute(steps[0])
    tokens = []
    for step in steps[1:]:
        runner.rounds.drafts.controller.rows[row].credit = -1.0
        tokens += tokens_of(runner.execute(step))[row]
    assert tokens == wanted
    assert counted.calls == [3] * 6
    # With credit, the drafter is called in each pass.
    runner.rounds.drafts.controller.rows[row].credit = 100.0
    runner.execute(round_of([row], 4))
    assert counted.calls == [3] * 6

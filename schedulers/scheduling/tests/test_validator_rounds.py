"""The validator's rules about rounds: steps in which rows decode several tokens."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ContractViolation
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup
from tenonry.sampling_params import SamplingParams, StructuredOutput
from tenonry.step import ModelRunnerOutput, NewRow, SchedulerOutput
from tenonry_scheduling.validator import StepValidator

DECODES = "a round holds only rows that decode"
RAGGED = "a round gives each row 1 to round_tokens tokens"


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def new_row(row: int, blocks: tuple[int, ...], sampling: SamplingParams) -> NewRow:
    """The request with handle `row` + 1 and a prompt of three."""
    return NewRow(
        row=row,
        handle=row + 1,
        token_ids=i32(5, 6, 7),
        num_computed=0,
        num_output=0,
        block_ids=(i32(*blocks),),
        sampling=sampling,
    )


def decoding(step_id: int, round_tokens: int = 4, **changes: object) -> SchedulerOutput:
    """Rows 0 and 1 decode."""
    columns: dict[str, object] = {
        "row": i32(0, 1),
        "num_tokens": i32(1, 1),
        "next_token": i32(9, 9),
        "samples": np.ones(2, np.bool_),
        "generation": i32(0, 0),
        "total_tokens": 2,
    }
    return SchedulerOutput(step_id=step_id, round_tokens=round_tokens, **(columns | changes))


def more_blocks(*rows: int) -> dict[str, object]:
    """Block 4 for the first of the rows, 5 for the second."""
    return {
        "new_block_row": i32(*rows),
        "new_block_group": i32(*(0 for _ in rows)),
        "new_block_id": i32(*range(4, 4 + len(rows))),
    }


def answer(step_id: int, *counts: int) -> ModelRunnerOutput:
    """A result with this many tokens of each row."""
    offsets = np.cumsum([0, *counts]).astype(np.int32)
    ids = np.full(offsets[-1], 9, np.int32)
    return ModelRunnerOutput(
        step_id=step_id, row=i32(*range(len(counts))), offsets=offsets, token_ids=ids
    )


def started(most: int = 4, **sampling: object) -> StepValidator:
    """Two rows that have sampled their first token, with blocks for eight tokens each, and at most ten in all."""
    config = EngineConfig(model="fake", max_num_seqs=3, max_num_batched_tokens=8)
    kv_cache = KVCacheConfig(
        num_blocks=10, block_size=4, groups=(KVCacheGroup(layers=("0",), kind="full"),)
    )
    validator = StepValidator(
        SchedulerContext(
            config,
            kv_cache,
            max_model_len=12,
            clock=time.monotonic,
            plugin_name="mine",
            max_round_tokens=most,
        )
    )
    params = SamplingParams(max_tokens=7, **sampling)
    rows = [new_row(0, (0, 1), params), new_row(1, (2, 3), params)]
    for request in (*rows, new_row(2, (), params)):
        validator.added(request)
    prompt = i32(3, 3)
    output = decoding(0, 1, num_tokens=prompt, next_token=i32(5, 5), total_tokens=6, new=rows)
    validator.scheduled(output)
    validator.answered(answer(0, 1, 1))
    return validator


def expect(rule: str, validator: StepValidator, output: SchedulerOutput) -> None:
    with pytest.raises(ContractViolation) as caught:
        validator.scheduled(output)
    assert caught.value.rule == rule


def test_rounds_follow_each_other():
    validator = started()
    validator.scheduled(decoding(1))
    validator.answered(answer(1, 4, 4))
    validator.scheduled(decoding(2, 2, **more_blocks(0, 1)))
    validator.answered(answer(2, 2, 2))


def test_a_row_goes_on_behind_the_tokens_that_it_got():
    validator = started()
    validator.scheduled(decoding(1))
    validator.answered(answer(1, 1, 3))
    validator.scheduled(decoding(2, 3, **more_blocks(1)))
    validator.answered(answer(2, 3, 3))


def test_a_row_that_is_thought_to_have_more_than_it_got():
    validator = started()
    validator.scheduled(decoding(1))
    validator.answered(answer(1, 1, 3))
    expect("max_tokens", validator, decoding(2, 4, **more_blocks(1)))


class TestSteps:
    def test_too_many_tokens(self):
        expect("max_round_tokens", started(3), decoding(1))

    def test_none(self):
        expect("max_round_tokens", started(), decoding(1, 0))

    def test_where_there_are_no_rounds(self):
        expect("max_round_tokens", started(1), decoding(1, 2))

    def test_a_row_that_computes_more(self):
        wrong = decoding(1, num_tokens=i32(2, 1), total_tokens=3)
        expect(DECODES, started(), wrong)

    def test_a_row_that_does_not_sample(self):
        expect(DECODES, started(), decoding(1, samples=np.array([True, False])))

    def test_a_new_row(self):
        new = new_row(2, (4, 5), SamplingParams(max_tokens=7))
        expect(DECODES, started(), decoding(1, new=[new]))

    def test_a_grammar(self):
        """Allowed: the worker has each token before the next one."""
        started(structured_output=StructuredOutput(json="{}")).scheduled(decoding(1))

    def test_beyond_max_tokens(self):
        validator = started(8)
        output = decoding(1, 7, **more_blocks(0, 1))
        expect("max_tokens", validator, output)

    def test_beyond_the_blocks(self):
        expect("every scheduled token has a slot", started(8), decoding(1, 6))


@pytest.mark.parametrize("counts", [(5, 4), (0, 4)], ids=["too many", "none"])
def test_wrong_answers(counts: tuple[int, int]):
    validator = started()
    validator.scheduled(decoding(1))
    with pytest.raises(ContractViolation, match=RAGGED):
        validator.answered(answer(1, *counts))


def test_an_answer_whose_offsets_do_not_fit():
    validator = started()
    validator.scheduled(decoding(1))
    result = answer(1, 4, 4)
    result.token_ids = result.token_ids[:7]
    with pytest.raises(ContractViolation, match=RAGGED):
        validator.answered(result)

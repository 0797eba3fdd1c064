"""Every rule of the validator, each broken once by a step that is otherwise right."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ContractViolation
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup
from tenonry.messages import EngineCoreRequest
from tenonry.request import Request
from tenonry.sampling_params import SamplingParams, StructuredOutput
from tenonry.step import Adapter, Media, ModelRunnerOutput, NewRow, SchedulerOutput
from tenonry_scheduling.validator import StepValidator


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def new_row(
    row: int, handle: int, length: int, *blocks: int, num_computed: int = 0, **fields
) -> NewRow:
    groups = fields.pop("groups", 1)
    return NewRow(
        row=row,
        handle=handle,
        token_ids=np.arange(length, dtype=np.int32),
        num_computed=num_computed,
        num_output=fields.pop("num_output", 0),
        block_ids=(i32(*blocks),) * groups,
        sampling=SamplingParams(
            max_tokens=fields.pop("max_tokens", 4),
            structured_output=fields.pop("structured_output", None),
        ),
        **fields,
    )


class RowsAsAdded(StepValidator):
    """Handles 1 to 9 exist; the first row of each matches its request."""

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context)
        self.waiting = set(range(1, 10))

    def scheduled(self, output: SchedulerOutput) -> None:
        for new in output.new:
            if new.handle in self.waiting:
                self.waiting.discard(new.handle)
                self.added(copy.deepcopy(new))
        super().scheduled(output)

    def ended(self, handle: int) -> None:
        self.waiting.discard(handle)
        super().ended(handle)


def step(step_id: int, *rows: tuple[int, int, bool], new=(), gone=(), blocks=()) -> SchedulerOutput:
    """`rows`: (row, num_tokens, samples); `blocks`: (row, block id)."""
    row, num_tokens, samples = zip(*rows, strict=True) if rows else ((), (), ())
    return SchedulerOutput(
        step_id=step_id,
        gone=i32(*gone),
        new=list(new),
        row=i32(*row),
        num_tokens=i32(*num_tokens),
        next_token=i32(*(1 for _ in row)),
        samples=np.array(samples, np.bool_),
        generation=i32(*(0 for _ in row)),
        new_block_row=i32(*(row for row, _ in blocks)),
        new_block_group=i32(*(0 for _ in blocks)),
        new_block_id=i32(*(block for _, block in blocks)),
        total_tokens=sum(num_tokens),
    )


def make_validator(
    *, feeds_back: bool = True, groups: int = 1, window: int = 0, max_loras: int = 0
) -> StepValidator:
    """Three rows of at most 12 tokens, ten blocks of four, eight tokens a step; handles 1 to 9 exist."""
    config = EngineConfig(
        model="fake", max_num_seqs=3, max_num_batched_tokens=8, max_loras=max_loras
    )
    kv_cache = KVCacheConfig(
        num_blocks=10,
        block_size=4,
        groups=tuple(
            KVCacheGroup(layers=(str(i),), kind="sliding" if window else "full", window=window)
            for i in range(groups)
        ),
    )
    return RowsAsAdded(
        SchedulerContext(
            config,
            kv_cache,
            max_model_len=12,
            clock=time.monotonic,
            plugin_name="mine",
            feeds_back_tokens=feeds_back,
        )
    )


@pytest.fixture
def validator() -> StepValidator:
    """After a right step: row 0 (handle 1) and row 1 (handle 2) hold three and five tokens and decode."""
    validator = make_validator()
    validator.scheduled(
        step(0, (0, 3, True), (1, 4, False), new=[new_row(0, 1, 3, 0), new_row(1, 2, 5, 1, 2)])
    )
    validator.scheduled(step(1, (0, 1, True), (1, 1, True)))
    return validator


def expect(validator: StepValidator, rule: str, output: SchedulerOutput, detail: str = "") -> None:
    with pytest.raises(ContractViolation) as caught:
        validator.scheduled(output)
    assert caught.value.rule == rule
    assert caught.value.plugin == "mine"
    assert caught.value.step_id == output.step_id
    assert "mine" in str(caught.value)
    assert rule in str(caught.value)
    assert detail in str(caught.value)


STEPS = "steps are numbered from 0"
REQUEST = "a new row is that of its request"
RIGHT = step(2, (0, 1, True), (1, 1, True), blocks=[(0, 3)], new=[new_row(2, 3, 4, 4)], gone=())


def test_the_step_that_the_others_break_is_right(validator):
    validator.scheduled(copy.deepcopy(RIGHT))


def broken(**changes: object) -> SchedulerOutput:
    return msgspec.structs.replace(copy.deepcopy(RIGHT), **changes)


Case = tuple[str, SchedulerOutput]
CASES: dict[str, Case] = {
    "a missing column entry": ("columns of a step have one length", broken(samples=np.ones(1, np.bool_))),
    "a missing generation": ("columns of a step have one length", broken(generation=i32(0))),
    "a missing new block": ("columns of a step have one length", broken(new_block_id=i32())),
    "a wrong sum": ("total_tokens is the sum of num_tokens", broken(total_tokens=3)),
    "too many tokens": ("max_num_batched_tokens", step(2, (0, 9, False))),
    "a row without tokens": ("a scheduled row computes tokens", step(2, (0, 1, True), (1, 0, False))),
    "a row beyond the last": ("max_num_seqs", step(2, (3, 1, True))),
    "a negative row": ("max_num_seqs", step(2, (-1, 1, True))),
    "a new row beyond the last": ("max_num_seqs", step(2, new=[new_row(3, 3, 4, 4)])),
    "a gone row beyond the last": ("max_num_seqs", step(2, gone=[-2])),
    "a block for a row beyond the last": ("max_num_seqs", step(2, blocks=[(3, 5)])),
    "a free row leaves": ("only running rows leave", step(2, gone=[2])),
    "a row leaves twice": ("only running rows leave", step(2, gone=[1, 1])),
    "an unknown request": ("only known, unfinished requests run", step(2, new=[new_row(2, 77, 4, 4)])),
    "a row in use": ("a row holds one request", step(2, new=[new_row(1, 3, 4, 4)])),
    "a request in two rows": ("a request has one row", step(2, new=[new_row(2, 1, 4, 4)])),
    "a prompt that is too long": ("max_model_len", step(2, new=[new_row(2, 3, 13, 4)])),
    "a block table that is too long": ("max_model_len", step(2, new=[new_row(2, 3, 4, 4, 5, 6, 7)])),
    "a block table that grows too long": ("max_model_len", step(2, (0, 1, True), blocks=[(0, 3), (0, 4), (0, 5)])),
    "a hit that covers everything": (
        "a hit never covers the last token", step(2, new=[new_row(2, 3, 4, 4, num_computed=4)]),
    ),
    "a hit below nothing": ("a hit never covers the last token", step(2, new=[new_row(2, 3, 4, 4, num_computed=-1)])),
    "a table too few": ("one block table per KV group", step(2, new=[new_row(2, 3, 4, groups=0)])),
    "a group that does not exist": ("one block table per KV group", broken(new_block_group=i32(1))),
    "a block that does not exist": ("block ids exist", broken(new_block_id=i32(10))),
    "a new row with a block that does not exist": ("block ids exist", step(2, new=[new_row(2, 3, 4, -1)])),
    "a row that never came": ("only running rows are scheduled", step(2, (0, 1, True), (2, 1, True))),
    "a row that just left": ("only running rows are scheduled", step(2, (0, 1, True), gone=[0])),
    "a row twice": ("a row is scheduled once per step", step(2, (1, 1, True), (1, 1, True))),
    "tokens that do not exist": ("only existing tokens are computed", step(2, (1, 2, True))),
    "a row that says it does not sample": ("exactly the last token of a row samples", step(2, (1, 1, False))),
    "a part that says it samples": (
        "exactly the last token of a row samples", step(2, (2, 3, True), new=[new_row(2, 3, 4, 4)]),
    ),
    "a token without a slot": ("every scheduled token has a slot", step(2, (0, 1, True))),
    "a new row without blocks": ("every scheduled token has a slot", step(2, (2, 4, True), new=[new_row(2, 3, 4)])),
    "two rows write one block": (
        "one writer per block", step(2, (0, 1, True), (2, 4, True), blocks=[(0, 3)], new=[new_row(2, 3, 4, 3)]),
    ),
    "another row still holds the block": ("one writer per block", step(2, (0, 1, True), blocks=[(0, 2)])),
    "a new row writes into a shared block": (
        "one writer per block", step(2, (2, 1, False), new=[new_row(2, 3, 4, 1, num_computed=2)]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_broken_rule_is_named(validator, case):
    expect(validator, CASES[case][0], copy.deepcopy(CASES[case][1]))


def test_steps_are_numbered():
    validator = make_validator()
    expect(make_validator(), STEPS, step(1), "expected step 0")
    validator.scheduled(step(0))
    expect(validator, STEPS, step(2), "expected step 1")


def test_finished_requests_do_not_start(validator):
    validator.ended(3)
    expect(validator, "only known, unfinished requests run", step(2, new=[new_row(2, 3, 4, 4)]))


def test_finished_requests_do_not_go_on(validator):
    validator.ended(2)
    expect(validator, "only running rows are scheduled", step(2, (1, 1, True)), "[1]")


def test_the_row_of_a_finished_request_may_leave_and_be_used_again(validator):
    validator.ended(2)
    validator.scheduled(step(2, (1, 4, True), gone=[1], new=[new_row(1, 3, 4, 1)]))


def test_max_tokens():
    validator = make_validator()
    validator.scheduled(step(0, (0, 3, True), new=[new_row(0, 1, 3, 0, max_tokens=2)]))
    validator.scheduled(step(1, (0, 1, True)))
    expect(validator, "max_tokens", step(2, (0, 1, True), blocks=[(0, 1)]), "6 tokens")


def test_max_tokens_count_what_was_delivered_before():
    validator = make_validator()
    validator.scheduled(
        step(0, (0, 4, True), new=[new_row(0, 1, 4, 0, max_tokens=3, num_output=2)])
    )
    expect(validator, "max_tokens", step(1, (0, 1, True), blocks=[(0, 1)]))


def test_max_model_len():
    validator = make_validator()
    validator.scheduled(step(0, (0, 8, False), new=[new_row(0, 1, 12, 0, 1, 2, max_tokens=None)]))
    expect(validator, "max_model_len", step(1, (0, 4, True)), "13 tokens")


def test_a_pending_token_is_not_scheduled_where_it_is_not_fed_back():
    validator = make_validator(feeds_back=False)
    first = step(0, (0, 3, True), new=[new_row(0, 1, 3, 0)])
    validator.scheduled(first)
    early = copy.deepcopy(validator)
    expect(early, "no row with a pending token", step(1, (0, 1, True)))
    validator.answered(ModelRunnerOutput(step_id=0, row=i32(0), token_ids=i32(5)))
    validator.scheduled(step(1, (0, 1, True)))


def test_a_row_with_a_grammar_is_not_scheduled_with_a_pending_token():
    validator = make_validator()
    bound = new_row(0, 1, 3, 0, structured_output=StructuredOutput(regex="a"))
    first = step(0, (0, 3, True), (1, 3, True), new=[bound, new_row(1, 2, 3, 1)])
    validator.scheduled(first)
    early = copy.deepcopy(validator)
    expect(early, "no row with a pending token", step(1, (0, 1, True)))
    validator.scheduled(step(1, (1, 1, True)))  # the other one has a token that is fed back
    validator.answered(ModelRunnerOutput(step_id=0, row=i32(0, 1), token_ids=i32(5, 5)))
    validator.scheduled(step(2, (0, 1, True)))
    # The next request in that row has no grammar.
    validator.scheduled(step(3, (0, 3, True), gone=[0], new=[new_row(0, 3, 3, 2)]))
    validator.scheduled(step(4, (0, 1, True)))


def test_a_step_has_rows_of_at_most_max_loras_adapters():
    """EC-13."""
    validator = make_validator(max_loras=1)
    one, two = Adapter("one", "1f"), Adapter("two", "2f")
    entering = [
        new_row(0, 1, 3, 0, adapter=one),
        new_row(1, 2, 2, 1, adapter=Adapter("again", "1f")),  # the same under another name
        new_row(2, 3, 1, 2),
    ]
    validator.scheduled(step(0, (0, 3, True), (1, 2, True), (2, 1, True), new=entering))
    second = new_row(2, 4, 2, 3, adapter=two)
    shared = step(1, (0, 1, True), (2, 2, True), gone=[2], new=[second])
    expect(copy.deepcopy(validator), "max_loras", shared, "2 different values of adapter")
    validator.scheduled(step(1, (2, 2, True), gone=[2], new=[second]))  # alone in its step
    expect(copy.deepcopy(validator), "max_loras", step(2, (1, 1, True), (2, 1, True)))
    validator.scheduled(step(2, (0, 1, True), (1, 1, True)))


def test_blocks_are_reusable_as_soon_as_their_row_left(validator):
    validator.scheduled(step(2, (2, 8, True), gone=[1], new=[new_row(2, 3, 8, 2, 1)]))


def test_a_prefix_may_be_shared_for_reading(validator):
    validator.scheduled(step(2, (2, 1, True), new=[new_row(2, 3, 5, 1, 4, num_computed=4)]))


def test_a_request_that_comes_back_may_share_what_another_writes(validator):
    """It wrote the block before it left; now the block belongs to another request and holds the same tokens."""
    validator.scheduled(step(2, gone=[1]))
    back = new_row(1, 2, 5, 1, 5, num_computed=4)
    validator.scheduled(step(3, (2, 4, True), (1, 1, True), new=[new_row(2, 3, 4, 1), back]))


def in_groups(row: int, handle: int, length: int, *tables: tuple[int, ...], **fields) -> NewRow:
    """As `new_row`, with a table per KV group."""
    entering = new_row(row, handle, length, **fields)
    entering.block_ids = tuple(i32(*table) for table in tables)
    return entering


class TestSharedBlocks:
    """A block belongs to one group at a time."""

    @pytest.fixture
    def started(self) -> StepValidator:
        """Row 0 has block 0 in group 0 and 2 in group 1; row 1 has 1 and 3."""
        validator = make_validator(groups=2)
        first = in_groups(0, 1, 3, (0,), (2,))
        second = in_groups(1, 2, 3, (1,), (3,))
        validator.scheduled(step(0, (0, 3, True), (1, 3, True), new=[first, second]))
        return validator

    @pytest.mark.parametrize("block", [1, 3])
    def test_no_group_writes_what_another_row_holds_in_any(self, started, block):
        clash = step(1, (2, 3, True), new=[in_groups(2, 3, 3, (5,), (block,))])
        expect(started, "one writer per block", clash, f"rows 1 and 2 share block {block}")

    def test_a_row_does_not_write_one_block_for_two_groups(self, started):
        clash = step(1, (2, 3, True), new=[in_groups(2, 3, 3, (5,), (5,))])
        expect(started, "one writer per block", clash, "rows 2 and 2 share block 5")

    def test_a_block_changes_groups_when_its_row_has_left(self, started):
        started.scheduled(step(1, (2, 3, True), gone=[1], new=[in_groups(2, 3, 3, (3,), (1,))]))


class TestWindows:
    """A sliding group of window 3 over blocks of four tokens: blocks before the window are not held."""

    @pytest.fixture
    def started(self) -> StepValidator:
        """Row 0 has computed six tokens, in blocks 0 and 1."""
        validator = make_validator(window=3)
        validator.scheduled(step(0, (0, 6, True), new=[new_row(0, 1, 6, 0, 1)]))
        return validator

    def test_a_block_that_the_window_has_left_may_be_written_at_once(self, started):
        """The token at 6 sees 4 and 5, which are in the second block."""
        started.scheduled(step(1, (0, 1, True), (1, 2, True), new=[new_row(1, 2, 2, 0)]))

    def test_so_it_may_while_the_row_does_not_run(self, started):
        started.scheduled(step(1, (1, 2, True), new=[new_row(1, 2, 2, 0)]))

    def test_a_block_that_the_window_still_sees_is_held(self, started):
        clash = step(1, (1, 2, True), new=[new_row(1, 2, 2, 1)])
        expect(started, "one writer per block", clash, "rows 0 and 1 share block 1")

    def test_what_this_step_reads_is_held_to_its_end(self):
        """Row 0 runs from token 5 to token 8: the first of them sees 3, and only the next step does not."""
        validator = make_validator(window=3)
        prompt = new_row(0, 1, 9, 0, 1, 2)
        validator.scheduled(step(0, (0, 5, False), new=[prompt]))
        clash = step(1, (0, 3, False), (1, 2, True), new=[new_row(1, 2, 2, 0)])
        expect(
            copy.deepcopy(validator), "one writer per block", clash, "rows 0 and 1 share block 0"
        )
        validator.scheduled(step(1, (0, 3, False)))
        validator.scheduled(step(2, (0, 1, True), (1, 2, True), new=[new_row(1, 2, 2, 0)]))

    def test_blocks_that_it_does_not_hold_may_have_any_id(self, started):
        """A row that starts behind a cached prefix names blocks that others write."""
        behind = new_row(1, 2, 9, 1, 1, 4, num_computed=8)
        started.scheduled(step(1, (0, 1, True), (1, 1, True), new=[behind]))


def test_a_prompt_in_parts_writes_each_block_once(validator: StepValidator):
    validator.scheduled(step(2, (2, 6, False), new=[new_row(2, 3, 11, 5, 6, 7)]))
    validator.scheduled(step(3, (2, 5, True)))


def test_an_empty_step_breaks_nothing(validator):
    validator.scheduled(step(2))
    validator.scheduled(step(3, gone=[0, 1]))
    validator.scheduled(step(4))


@pytest.mark.parametrize("forget", ["added", "ended"])
def test_the_validator_is_told_by_the_engine_only(forget: str):
    """Handles are known through `added` and `ended`, not from the scheduler."""
    calls: dict[str, Callable[[StepValidator], None]] = {
        "added": lambda v: None,
        "ended": lambda v: v.ended(50),
    }
    validator = make_validator()
    if forget == "ended":
        validator.added(new_row(0, 50, 3))
    calls[forget](validator)
    expect(validator, "only known, unfinished requests run", step(0, new=[new_row(0, 50, 3, 0)]))


ONES = np.ones(3)
FIELDS: dict[str, dict[str, object]] = {
    "token_ids": {"token_ids": i32(0, 1, 9, 3, 4)},
    "token_ids, delivered": {"token_ids": i32(0, 1, 2, 3, 9)},
    "token_ids, one missing": {"token_ids": i32(0, 1, 2, 3), "num_output": 0},
    "num_output": {"num_output": 0},
    "sampling": {"sampling": SamplingParams(max_tokens=4, temperature=0.5)},
    "sampling, its grammar": {"sampling": SamplingParams(max_tokens=4, structured_output=StructuredOutput(regex="b"))},
    "stop_token_ids": {"stop_token_ids": ()},
    "bad_words": {"bad_words": ((7, 9),)},
    "adapter": {"adapter": None},
    "adapter, another version": {"adapter": Adapter("one", "2f")},
    "media": {"media": None},
    "media, another picture": {"media": Media(np.array([[1, 2]]), np.zeros((1, 32), np.uint8), [{"pixels": ONES}])},
    "features": {"features": None},
    "features, one missing": {"features": {"spans": np.array([[1, 2]])}},
    "features, another picture": {"features": {"spans": np.array([[1, 2]]), "pixels": np.ones((2, 3), np.float32)}},
}  # fmt: skip


OWN_RULES = {
    "row",
    "handle",
    "num_computed",
    "block_ids",
}  # of which the request says nothing; see CASES


def test_every_field_of_a_row_is_broken_here():
    fields = {case.partition(",")[0] for case in FIELDS}
    assert fields | OWN_RULES == set(NewRow.__struct_fields__)


class TestFieldsOfARequest:
    """A row that lacks a field of its request would be answered as if it had not been set."""

    def request(self) -> NewRow:
        """A prompt of four and a delivered token."""
        return new_row(
            0,
            50,
            5,
            0,
            1,
            num_output=1,
            max_tokens=9,
            structured_output=StructuredOutput(regex="a"),
            stop_token_ids=(8,),
            bad_words=((7, 8),),
            adapter=Adapter("one", "1f"),
            features={"spans": np.array([[1, 2]]), "pixels": np.full((2, 3), np.nan, np.float32)},
            media=Media(
                np.array([[1, 2]]), np.zeros((1, 32), np.uint8), [{"pixels": np.full(3, np.nan)}]
            ),
        )

    @pytest.fixture
    def asked(self) -> StepValidator:
        validator = make_validator()
        validator.added(self.request())
        return validator

    @pytest.mark.parametrize("case", FIELDS)
    def test_a_row_that_differs_is_named(self, asked, case):
        row = msgspec.structs.replace(self.request(), **FIELDS[case])
        expect(asked, REQUEST, step(0, new=[row]), case.partition(",")[0])

    @pytest.mark.parametrize("case", FIELDS)
    def test_a_row_that_comes_back_keeps_its_fields(self, asked, case):
        asked.scheduled(step(0, (0, 5, True), new=[self.request()]))
        asked.scheduled(step(1, gone=[0]))
        back = msgspec.structs.replace(
            self.request(), row=1, token_ids=np.arange(7, dtype=np.int32), num_output=3
        )
        copy.deepcopy(asked).scheduled(step(2, new=[back]))
        wrong = msgspec.structs.replace(back, **FIELDS[case])
        expect(asked, REQUEST, step(2, new=[wrong]))

    def test_what_the_scheduler_empties_is_noticed(self):
        """The scheduler may change its own copy of the request; the workers' copy must match."""
        source = EngineCoreRequest(
            handle=50,
            request_id="50",
            prompt_token_ids=i32(1, 2, 3),
            sampling_params=SamplingParams(),
            features={"spans": np.array([[1, 2]])},
            media=Media(np.array([[1, 2]]), np.zeros((1, 32), np.uint8), [{}]),
        )
        request = Request(source, 1, 0.0, 12)
        validator = make_validator()
        validator.added(request.new_row(0, 0, ()))
        assert source.features is not None
        assert source.media is not None
        source.media.inputs.clear()
        media = copy.deepcopy(validator)
        expect(media, REQUEST, step(0, new=[request.new_row(0, 0, (i32(0),))]), "media")
        source.features.clear()
        expect(validator, REQUEST, step(0, new=[request.new_row(0, 0, (i32(0),))]), "features")

"""A row that enters behind a shared prefix continues from a snapshot of another row's state."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import worker_families
import worker_tools

from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput
from tenonry_worker_torch.kv_groups import GroupLayout

SHARED = 8  # tokens, two blocks of four
SLOT = 2


@functools.cache
def model_of(family):
    return worker_tools.loaded(worker_families.build(family))


def entering(row, tokens, blocks, slots=(), num_computed=0):
    is_alone = blocks is None
    groups = () if is_alone else (np.array(blocks, np.int32),)
    return NewRow(
        row=row,
        handle=row + 1,
        token_ids=np.array(tokens, np.int32),
        num_computed=num_computed,
        num_output=0,
        block_ids=(*groups, np.array(slots, np.int32)),
        sampling=SamplingParams(temperature=0.0),
    )


def step(step_id, counts, samples, *, new=(), saved=None, group=1):
    """`counts`: row → tokens. `saved`: (row, slot) of a snapshot after the step."""
    saved = [] if saved is None else [saved]
    return SchedulerOutput(
        step_id=step_id,
        new=list(new),
        row=np.array(list(counts), np.int32),
        num_tokens=np.array(list(counts.values()), np.int32),
        next_token=np.full(len(counts), -1, np.int32),
        samples=np.array(samples, np.bool_),
        new_block_row=np.array([row for row, _ in saved], np.int32),
        new_block_group=np.full(len(saved), group, np.int32),
        new_block_id=np.array([slot for _, slot in saved], np.int32),
        generation=np.zeros(len(counts), np.int32),
        total_tokens=sum(counts.values()),
    )


@pytest.mark.parametrize("family", ["qwen3_next", "mamba2", "lfm2"])
@pytest.mark.slow
def test_a_restored_row_samples_what_the_whole_prompt_samples(family):
    model = model_of(family)
    prompt = worker_tools.prompts()[3]
    has_attention = bool(model.layers)
    groups = 2 if has_attention else 1
    runner = worker_tools.runner(model, groups=GroupLayout(groups, 3))
    blocks = [list(range(5, 15)), [5, 6, *range(20, 28)]] if has_attention else [None, None]
    made = []

    first = entering(0, prompt, blocks[0])
    runner.execute(step(1, {0: SHARED}, [False], new=[first], saved=(0, SLOT), group=groups - 1))
    runner.execute(step(2, {0: len(prompt) - SHARED}, [True]))  # the state of row 0 moves on
    second = entering(3, prompt, blocks[1], slots=[SLOT], num_computed=SHARED)
    result = runner.execute(step(3, {0: 1, 3: len(prompt) - SHARED}, [True, True], new=[second]))
    made.append(int(result.token_ids[1]))
    for number in range(4, 4 + worker_tools.OUTPUT_LENGTH - 1):
        result = runner.execute(step(number, {3: 1}, [True]))
        made.append(int(result.token_ids[0]))
    assert made == worker_tools.generated(family)[3]


def test_a_row_that_enters_in_the_middle_without_a_snapshot_is_an_error():
    """Its state would be that of the row's last owner."""
    runner = worker_tools.runner(model_of("mamba2"), groups=GroupLayout(1, 1))
    prompt = worker_tools.prompts()[1]
    with pytest.raises(RuntimeError, match="0 snapshots of its state"):
        runner.execute(step(1, {0: 5}, [False], new=[entering(0, prompt, None, num_computed=4)]))


def test_snapshots_stand_beside_the_rows_and_the_one_of_no_request():
    runner = worker_tools.runner(model_of("mamba2"), max_num_seqs=4, groups=GroupLayout(1, 3))
    pools = [pool for mixer in runner.model.states.mixers for pool in mixer.pools.values()]
    assert {len(pool) for pool in pools} == {4 + 1 + 3}


@pytest.mark.parametrize("family", ["qwen3_next", "mamba"])
def test_rows_that_go_on_with_pieces_of_one_length_are_computed_together(family):
    model = model_of(family)
    groups = 2 if model.layers else 1
    prompts = worker_tools.prompts(lengths=(16, 16))
    blocks = [list(range(5, 15)), list(range(20, 30))] if model.layers else [None, None]

    def served(rows):
        runner = worker_tools.runner(model, groups=GroupLayout(groups))
        new = [entering(row, prompts[i], blocks[i]) for row, i in rows.items()]
        runner.execute(step(1, dict.fromkeys(rows, 9), [False] * len(rows), new=new))
        counts = [7, 1, 1, 1, 1, 1]
        made = [
            runner.execute(step(2 + i, dict.fromkeys(rows, count), [True] * len(rows)))
            for i, count in enumerate(counts)
        ]
        return np.array([result.token_ids for result in made]).T.tolist()

    apart = [served({0: 0})[0], served({3: 1})[0]]
    assert served({0: 0, 3: 1}) == apart
    assert apart[0] != apart[1]

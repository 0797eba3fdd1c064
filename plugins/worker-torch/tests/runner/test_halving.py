"""A step whose memory does not suffice is computed in smaller parts: reliability, fault 9."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import worker_families
import worker_tools
from worker_driver import Driver, Request

from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput
from tenonry_scheduling.columns import BatchState
from tenonry_worker_torch.runner.halving import is_in_order, is_out_of_memory, middle
from tenonry_worker_torch.runner.step import part_of

HUGE = 1 << 60  # bytes
SORTS = (
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 3, "top_p": 0.9, "frequency_penalty": 0.3, "logprobs": 2},
    {"temperature": 0.0, "prompt_logprobs": 2},
)


@pytest.fixture(scope="module")
def llama():
    return worker_tools.loaded(worker_families.build("llama"))


def requests():
    return [
        Request(
            number + 1,
            prompt,
            sampling=SamplingParams(max_tokens=10, ignore_eos=True, **SORTS[number % len(SORTS)]),
            max_tokens=10,
        )
        for number, prompt in enumerate(worker_tools.prompts())
    ]


def short_of_memory(runner, most, *, is_late):
    """A runner that computes at most `most` tokens per pass. `is_late`: it fails after all K/V are written."""
    forward = runner.forward_pass.forward
    sizes = []

    def limited(inputs, *given):
        count = len(inputs)
        sizes.append(count)
        logits = forward(inputs, *given) if is_late or count <= most else None
        return logits if count <= most else torch.empty(HUGE)

    limited.can_prune = forward.can_prune
    runner.forward_pass.forward = limited
    return sizes


def served(runner, **way):
    asked = requests()
    Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4, **way).run(asked)
    return asked


def told(request):
    return (
        request.output,
        [[part.start, part.token_ids.tolist()] for part in request.prompt_logprobs],
        [ids.tolist() for ids, _, _ in request.logprobs],
    )


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "sdpa"])
@pytest.mark.parametrize("way", [{}, {"budget": 9, "depth": 2, "preempt_every": 4}])
@pytest.mark.parametrize("most", [1, 5])
@pytest.mark.slow
@pytest.mark.nightly_after(5)
def test_tokens_are_those_of_an_undisturbed_run(most, way, backend, is_late, caplog):
    model = worker_tools.loaded(worker_families.build("llama"), backend=backend)
    wanted = [told(each) for each in served(worker_tools.runner(model), **way)]
    runner = worker_tools.runner(model)
    sizes = short_of_memory(runner, most, is_late=is_late)
    assert [told(each) for each in served(runner, **way)] == wanted
    assert max(sizes) > most
    assert "computed in smaller parts" in caplog.text


def test_a_token_that_does_not_fit_ends_the_step(llama):
    runner = worker_tools.runner(llama)
    short_of_memory(runner, 0, is_late=False)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        served(runner)


def test_rows_that_are_computed_again_are_others_to_the_backend(llama, monkeypatch):
    """It may keep state of a row besides its blocks, by the row's generation, and the failed pass corrupted it."""
    runner = worker_tools.runner(llama)
    short_of_memory(runner, 1, is_late=True)
    plan = llama.backend.plan
    seen = []

    def watched(batch):
        if batch.full_plan is None:
            columns = (batch.row, batch.generation, batch.seq_lens)
            seen.extend(zip(*(column.tolist() for column in columns), strict=True))
        return plan(batch)

    monkeypatch.setattr(llama.backend, "plan", watched)
    served(runner)
    assert len(seen) == len(set(seen)) > 0


def test_another_error_is_passed_on_at_once(llama, caplog):
    runner = worker_tools.runner(llama)

    def forward(*_):
        return torch.ones(2) @ torch.ones(3)

    forward.can_prune = False
    runner.forward_pass.forward = forward
    with pytest.raises(RuntimeError, match="size"):
        served(runner)
    assert "smaller" not in caplog.text


def step(*rows, block_size=4):
    """Inputs of one step and their state. A row is (blocks, tokens computed before, tokens to compute, samples)."""
    state = BatchState(8, 64, block_size)
    new = [
        NewRow(
            row=place, handle=place + 1, token_ids=np.arange(start + count, dtype=np.int32) + 100 * place,
            num_computed=start, num_output=0, block_ids=(np.array(blocks, np.int32),), sampling=SamplingParams(),
        )
        for place, (blocks, start, count, _) in enumerate(rows)
    ]  # fmt: skip
    num_tokens = np.array([count for _, _, count, _ in rows], np.int32)
    output = SchedulerOutput(
        step_id=1, new=new, row=np.arange(len(rows), dtype=np.int32), num_tokens=num_tokens,
        next_token=np.full(len(rows), -1, np.int32), samples=np.array([samples for *_, samples in rows]),
        total_tokens=int(num_tokens.sum()),
    )  # fmt: skip
    return state.apply(output), state


MIXED = (([1], 3, 1, True), ([2, 3], 0, 6, False), ([4, 5, 6], 8, 3, True), ([7], 0, 1, True))


@pytest.mark.parametrize("cut", range(1, 11))
def test_two_parts_are_the_step(cut):
    inputs, _ = step(*MIXED)
    parts = [part_of(inputs, 0, cut), part_of(inputs, cut, 11)]
    for column in ("positions", "token_ids", "token_row"):
        joined = np.concatenate([getattr(part, column) for part in parts])
        np.testing.assert_array_equal(joined, getattr(inputs, column))
    for part in parts:
        np.testing.assert_array_equal(np.diff(part.query_start_loc), part.num_tokens)
        np.testing.assert_array_equal(part.seq_lens - part.start, part.num_tokens)
        np.testing.assert_array_equal(part.positions[part.query_start_loc[:-1]], part.start)
        np.testing.assert_array_equal(np.repeat(part.row, part.num_tokens), part.token_row)
    sampling = np.concatenate([part.row[part.samples] for part in parts])
    assert sampling.tolist() == [0, 2, 3]


def test_rows_are_cut_where_they_may_be():
    inputs, _ = step(*MIXED)
    assert middle(inputs, cuts_rows=True) == 5
    assert middle(inputs, cuts_rows=False) == 7
    alone, _ = step(MIXED[1])
    assert middle(alone, cuts_rows=False) is None
    assert middle(part_of(alone, 0, 1), cuts_rows=True) is None


def test_a_row_that_reads_what_a_later_one_fills_is_not_computed_before_it():
    """A scheduler may assign a row blocks that another fills in the same step."""
    filling = ([1, 2], 0, 8, True)
    reading = ([1, 2, 3], 8, 2, True)
    assert is_in_order(*step(filling, reading))
    assert not is_in_order(*step(reading, filling))
    assert is_in_order(*step(*MIXED))


def test_a_matrix_product_without_workspace_is_out_of_memory():
    message = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"))

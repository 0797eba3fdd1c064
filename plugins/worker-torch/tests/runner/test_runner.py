from __future__ import annotations

import numpy as np
import pytest
import torch
import worker_families
import worker_tools
from worker_driver import Driver, Request

from tenonry.sampling_params import SamplingParams
from tenonry.step import RowFailure
from tenonry_torch_base import profiling

pytestmark = pytest.mark.slow  # whole models


@pytest.fixture(scope="module")
def llama():
    return worker_tools.loaded(worker_families.build("llama"))


def serve(model, requests, **way):
    runner = worker_tools.runner(model)
    Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4, **way).run(requests)
    return requests


def request(number, prompt, **sampling):
    wish = SamplingParams(**({"max_tokens": 10, "ignore_eos": True} | sampling))
    return Request(number, prompt, sampling=wish, max_tokens=wish.max_tokens)


def sampled_requests():
    return [
        request(
            number + 1,
            prompt,
            temperature=0.9,
            seed=number,
            top_p=0.9,
            frequency_penalty=0.3,
            logprobs=2,
        )
        for number, prompt in enumerate(worker_tools.prompts())
    ]


def test_random_tokens_do_not_depend_on_batching_chunking_or_preemption(llama):
    wanted = [serve(llama, [one])[0].output for one in sampled_requests()]
    for way in ({}, {"budget": 7}, {"depth": 3}, {"budget": 9, "depth": 2, "preempt_every": 4}):
        assert [one.output for one in serve(llama, sampled_requests(), **way)] == wanted
    assert len({token for tokens in wanted for token in tokens}) > 20


def test_the_parts_of_a_step_are_named_for_profilers(llama, monkeypatch):
    """PR-1."""
    monkeypatch.setenv(profiling.TORCH_VARIABLE, "1")
    profiling.kind_of_scope.cache_clear()
    try:
        with torch.autograd.profiler.profile() as seen:
            serve(llama, [request(1, worker_tools.prompts()[0], max_tokens=3)])
    finally:
        profiling.kind_of_scope.cache_clear()
    counts = {
        event.key: event.count for event in seen.key_averages() if event.key.startswith("tenonry: ")
    }
    assert counts["tenonry: forward"] == counts["tenonry: sample"] == 3
    assert counts["tenonry: step"] >= 3


def test_threads_have_places_while_the_model_computes_and_no_longer(llama, monkeypatch):
    """Threads started in between, such as those that compile grammars, would inherit the affinity of a step."""
    runner = worker_tools.runner(llama)
    seen = []

    class CpuAffinity:
        def __enter__(self):
            seen.append("places taken")

        def __exit__(self, *_):
            seen.append("places left")

    def noted(name):
        call = getattr(runner.sampler, name)

        def answer(*arguments):
            seen.append(name)
            return call(*arguments)

        return answer

    for name in ("compile", "sample"):
        monkeypatch.setattr(runner.sampler, name, noted(name))
    runner.forward_pass.affinity = CpuAffinity()
    requests = [request(1, worker_tools.prompts()[0], max_tokens=3)]
    Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4).run(requests)
    step = ["compile", "places taken", "places left", "sample"]
    assert seen[:12] == 3 * step


def test_logprobs_are_the_models_own(llama):
    one = serve(llama, [request(1, worker_tools.prompts()[1], temperature=0.0, logprobs=3)])[0]
    reference = worker_families.build("llama")
    with torch.inference_mode():
        logits = reference(torch.tensor([one.prompt + one.output])).logits[0]
    wanted = torch.log_softmax(logits, -1)[len(one.prompt) - 1 : -1]
    for position, (ids, values, rank) in enumerate(one.logprobs):
        assert ids[0] == one.output[position]
        assert rank == 1
        np.testing.assert_allclose(
            values, wanted[position, torch.from_numpy(ids).long()], atol=1e-4
        )


@pytest.mark.parametrize("way", [{}, {"budget": 6}, {"budget": 6, "depth": 2}])
def test_prompt_logprobs_cover_every_prompt_token_but_the_first(llama, way):
    asking, other = worker_tools.prompts()[3], worker_tools.prompts()[1]
    one, plain = serve(
        llama,
        [
            request(1, asking, temperature=0.0, prompt_logprobs=2),
            request(2, other, temperature=0.0),
        ],
        **way,
    )
    alone = serve(llama, [request(2, other, temperature=0.0)])[0]
    assert plain.output == alone.output
    assert not plain.prompt_logprobs
    starts = [part.start for part in one.prompt_logprobs]
    lengths = [len(part.rank) for part in one.prompt_logprobs]
    assert starts == [1 + sum(lengths[:i]) for i in range(len(lengths))]
    assert sum(lengths) == len(asking) - 1
    ids = np.concatenate([part.token_ids for part in one.prompt_logprobs])
    values = np.concatenate([part.logprobs for part in one.prompt_logprobs])
    rank = np.concatenate([part.rank for part in one.prompt_logprobs])
    with torch.inference_mode():
        wanted = torch.log_softmax(
            worker_families.build("llama")(torch.tensor([asking])).logits[0], -1
        )
    for position in range(len(asking) - 1):
        assert ids[position, 0] == asking[position + 1]
        own = wanted[position, asking[position + 1]]
        assert values[position, 0] == pytest.approx(float(own), abs=1e-4)
        assert rank[position] == int((wanted[position] > own).sum()) + 1
        assert ids[position, 1:].tolist() == wanted[position].topk(2).indices.tolist()


@pytest.mark.parametrize("fuse", [True, False])
def test_prompt_logprobs_of_two_tokens_do_not_change_what_is_sampled(fuse):
    """There are as many requested positions as tokens, but in another order."""
    model = worker_tools.loaded(worker_families.build("qwen3"), fuse=fuse)
    plain = serve(model, [request(1, [3, 10], temperature=0.0)])[0].output
    assert (
        serve(model, [request(1, [3, 10], temperature=0.0, prompt_logprobs=1)])[0].output == plain
    )


@pytest.mark.parametrize("backend", worker_tools.BACKENDS)
def test_a_request_that_makes_nan_fails_alone_and_leaves_nothing_behind(backend):
    """One token's embedding is NaN. Rows of the same batch, and rows that get its blocks later, do not change."""
    module = worker_families.build("llama")
    model = worker_tools.loaded(module, backend=backend)
    prompts = worker_tools.prompts()
    wanted = [
        one.output
        for one in serve(model, [request(i + 1, p, temperature=0.0) for i, p in enumerate(prompts)])
    ]
    poison = next(
        token
        for token in range(95, 2, -1)
        if not any(token in p + w for p, w in zip(prompts, wanted, strict=True))
    )
    module.get_input_embeddings().weight.data[poison] = float("nan")
    runner = worker_tools.runner(model, num_blocks=60)
    driver = Driver(runner.answer, max_num_seqs=6, num_blocks=60, block_size=4)
    bad = Request(99, [7, poison, 9], max_tokens=10)
    requests = [bad, *(request(i + 1, p, temperature=0.0) for i, p in enumerate(prompts))]
    driver.run(requests)
    assert bad.failure == RowFailure.NUMERICAL
    assert [one.output for one in requests[1:]] == wanted
    again = [request(i + 1, p, temperature=0.0) for i, p in enumerate(prompts)]
    assert [one.output for one in driver.run(again)] == wanted


def poisoned(backend="sdpa"):
    """A model with a token whose embedding is NaN, that token, a prompt without it, and the tokens that follow it."""
    module = worker_families.build("llama")
    model, prompt = worker_tools.loaded(module, backend=backend), worker_tools.prompts()[3]
    wanted = serve(model, [request(1, prompt, temperature=0.0)])[0].output
    poison = next(token for token in range(3, 96) if token not in [*prompt, *wanted])
    module.get_input_embeddings().weight.data[poison] = float("nan")
    return model, poison, prompt, wanted


def entering(number, row, tokens, num_computed, blocks, gone=(), *, samples=True):
    """A step with one row, which enters and, unless it is a chunk, samples."""
    from tenonry.step import NewRow, SchedulerOutput

    new = NewRow(
        row=row, handle=number + 1, token_ids=np.array(tokens, np.int32), num_computed=num_computed, num_output=0,
        block_ids=(np.array(blocks, np.int32),), sampling=SamplingParams(temperature=0.0),
    )  # fmt: skip
    return SchedulerOutput(
        step_id=number, gone=np.array(gone, np.int32), new=[new], row=np.array([row], np.int32),
        num_tokens=np.array([len(tokens) - num_computed], np.int32), next_token=np.array([-1], np.int32),
        samples=np.array([samples]),
    )  # fmt: skip


def decoding(number, row, token, blocks=()):
    """A step in which an existing row continues with one token."""
    from tenonry.step import SchedulerOutput

    count = len(blocks)
    return SchedulerOutput(
        step_id=number, row=np.array([row], np.int32), num_tokens=np.ones(1, np.int32),
        next_token=np.array([token], np.int32), samples=np.array([True]),
        new_block_row=np.full(count, row, np.int32), new_block_group=np.zeros(count, np.int32),
        new_block_id=np.array(blocks, np.int32),
    )  # fmt: skip


def test_a_failed_row_leaves_the_prefix_that_others_share_as_it_was():
    """Its first blocks came from the prefix cache: others read them, now and later, and their contents are sound."""
    model, poison, prompt, wanted = poisoned()
    runner = worker_tools.runner(model)
    first = runner.answer(entering(0, 3, prompt, 0, range(20, 30))).result()
    assert first.token_ids.tolist() == wanted[:1]
    bad = runner.answer(entering(1, 1, [*prompt[:32], poison], 32, [*range(20, 28), 40])).result()
    assert bad.failed_code.tolist() == [RowFailure.NUMERICAL]
    again = runner.answer(entering(2, 2, prompt, 32, [*range(20, 28), 41], gone=[1])).result()
    assert again.token_ids.tolist() == wanted[:1]


@pytest.mark.parametrize("backend", worker_tools.BACKENDS)
def test_the_nan_of_an_aborted_prompt_does_not_count(backend):
    """Its first chunk samples nothing; the next owner of its blocks reads their remaining contents behind a mask."""
    model, poison, prompt, wanted = poisoned(backend)
    runner = worker_tools.runner(model)
    chunk = entering(0, 1, [poison, *prompt[:15]], 0, range(20, 30), samples=False)
    assert len(runner.answer(chunk).result().failed_row) == 0
    for number, blocks in enumerate(([*range(30, 38), 20, 21], [*range(40, 48), 22, 23]), 1):
        step = entering(number, number % 2, prompt, 0, blocks, gone=[1 - number % 2])
        assert runner.answer(step).result().token_ids.tolist() == wanted[:1]
        tokens = [*prompt, *wanted]
        for at in range(len(prompt), len(prompt) + 6):
            block = (blocks[at // 4],) if at % 4 == 0 else ()
            result = runner.answer(
                decoding(10 * number + at, number % 2, tokens[at], block)
            ).result()
            assert result.token_ids.tolist() == [tokens[at + 1]]


def test_who_shares_blocks_with_a_failed_row_fails_too():
    """It was scheduled before the failure was known: its cached prefix must match its prompt."""
    model, poison, prompt, _ = poisoned()
    runner = worker_tools.runner(model)
    bad = runner.answer(entering(0, 1, [poison, *prompt[:15]], 0, range(20, 24))).result()
    assert bad.failed_code.tolist() == [RowFailure.NUMERICAL]
    other = runner.answer(entering(1, 2, [poison, *prompt[:18]], 16, [*range(20, 24), 30])).result()
    assert other.failed_code.tolist() == [RowFailure.NUMERICAL]


def test_a_step_that_only_takes_leave_answers_with_nothing(llama):
    runner = worker_tools.runner(llama)
    driver = Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4)
    driver.gone = []
    result = runner.answer(driver._empty_step()).result()
    assert len(result.row) == len(result.token_ids) == 0


def test_prefix_blocks_computed_in_the_same_step_can_be_read(llama):
    """A row whose first blocks another row fills in this very step: all K/V of a layer are written before any read."""
    from tenonry.step import NewRow, SchedulerOutput

    prompt = worker_tools.prompts()[3]
    wanted = serve(llama, [request(1, prompt, temperature=0.0, max_tokens=1)])[0].output
    runner = worker_tools.runner(llama)
    greedy = SamplingParams(temperature=0.0)
    first = NewRow(
        row=3, handle=1, token_ids=np.array(prompt, np.int32), num_computed=0, num_output=0,
        block_ids=(np.arange(20, 30, dtype=np.int32),), sampling=greedy,
    )  # fmt: skip
    second = NewRow(
        row=1, handle=2, token_ids=np.array(prompt, np.int32), num_computed=32, num_output=0,
        block_ids=(np.array([*range(20, 28), 40], np.int32),), sampling=greedy,
    )  # fmt: skip
    for order in ([1, 3], [3, 1]):
        rows = np.array(order, np.int32)
        out = runner.answer(
            SchedulerOutput(
                step_id=1,
                new=[first, second],
                row=rows,
                num_tokens=np.array([1 if row == 1 else 33 for row in order], np.int32),
                next_token=np.full(2, -1, np.int32),
                samples=np.ones(2, np.bool_),
            )
        ).result()
        assert out.row.tolist() == order
        assert out.token_ids.tolist() == wanted * 2

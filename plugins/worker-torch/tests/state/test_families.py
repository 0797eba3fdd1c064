"""Greedy tokens equal transformers' generate in float32 for models whose layers keep state by row."""

from __future__ import annotations

import functools

import pytest
import state_families
import torch
import worker_families
import worker_tools
from parallel_tools import Ranks
from worker_driver import Driver, Request

from tenonry_worker_torch.kv_groups import GroupLayout, kv_groups
from tenonry_worker_torch.state.continuation import Continuation

pytestmark = pytest.mark.slow  # whole models

WAYS = {
    "one big batch": {},
    "chunked prefill": {"budget": 7},
    "two steps in flight": {"depth": 2},
    "three steps in flight": {"depth": 3, "budget": 20},
    "preempted": {"budget": 11, "depth": 2, "preempt_every": 5},
}
ALL_WAYS = ("qwen3_next", "mamba2", "lfm2")
ONE_WAY = sorted(set(state_families.FAMILIES) - set(ALL_WAYS))


@functools.cache
def model_of(family):
    return worker_tools.loaded(worker_families.build(family))


def groups_of(model):
    specs = [layer.spec for layer in model.layers.values()]
    return kv_groups(specs, model.backend.storage, model.backend, model.states)


def serve(model, prompts=None, **way):
    # The driver's blocks are those of group 0, and none of its rows has a snapshot.
    runner = worker_tools.runner(model, groups=GroupLayout(2))
    driver = Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4, **way)
    requests = [
        Request(number + 1, prompt, max_tokens=worker_tools.OUTPUT_LENGTH)
        for number, prompt in enumerate(prompts or worker_tools.prompts())
    ]
    return [request.output for request in driver.run(requests)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ALL_WAYS)
def test_tokens_equal_generate(family, way):
    assert serve(model_of(family), **WAYS[way]) == worker_tools.generated(family)


@pytest.mark.parametrize("family", ["qwen3_next", "mamba", "lfm2"])
def test_pieces_of_one_length_are_computed_together(family):
    """Prompts of two lengths in one step, and one by one as the budget allows."""
    model = model_of(family)
    prompts = worker_tools.prompts(lengths=(20, 20, 20, 20, 7, 7))
    alone = [serve(model, [prompt])[0] for prompt in prompts]
    assert serve(model, prompts) == alone
    assert serve(model, prompts, budget=20) == alone
    assert len({tuple(output) for output in alone}) == len(prompts)


@pytest.mark.parametrize("family", ONE_WAY)
@pytest.mark.nightly_after(3)
def test_tokens_equal_generate_when_rows_are_cut_and_preempted(family):
    assert serve(model_of(family), **WAYS["preempted"]) == worker_tools.generated(family)


@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("qwen3_next", ["full", "recurrent"]),
        ("mamba2", ["recurrent"]),
        ("lfm2", ["full", "recurrent"]),
    ],
)
def test_state_is_a_group_of_its_own_after_that_of_attention(family, kinds):
    groups = groups_of(model_of(family))
    assert [group.kind for group in groups] == kinds
    assert groups[-1].bytes_per_token == 0
    assert groups[-1].state_bytes == sum(
        pool[0].numel() * pool.element_size()
        for mixer in model_of(family).states.mixers
        for pool in _allocated(mixer)
    )


def _allocated(mixer):
    mixer.allocate(2, torch.device("cpu"))
    return mixer.pools.values()


@pytest.mark.parametrize(
    ("family", "wanted"),
    [
        ("mamba", Continuation.ONE_AT_A_TIME),
        ("jamba", Continuation.ONE_AT_A_TIME),
        ("mamba2", Continuation.IN_PIECES),
    ],
)
def test_code_that_drops_the_state_of_a_continued_prompt_is_fed_by_token(family, wanted):
    """transformers' Mamba starts from zero whenever it is given more than one token."""
    assert {mixer.continuation for mixer in model_of(family).states.mixers} == {wanted}


@pytest.mark.parametrize("layout", [(2, 1), (1, 2)])
def test_ranks_together_serve_what_one_process_serves(layout, tmp_path):
    """The plan of the family leaves mixers whole; the second stage has one, and no attention."""
    worker_families.save("qwen3_next", tmp_path)
    ranks = Ranks(tmp_path, *layout, groups=GroupLayout(2))
    requests = [
        Request(number + 1, prompt, max_tokens=worker_tools.OUTPUT_LENGTH)
        for number, prompt in enumerate(worker_tools.prompts())
    ]
    Driver(ranks.answer, max_num_seqs=6, num_blocks=96, block_size=4, budget=17).run(requests)
    assert [one.output for one in requests] == worker_tools.generated("qwen3_next")
    shapes = [[group.kind for group in groups_of(model)] for model in ranks.models]
    assert shapes == [["full", "recurrent"]] * 2
    ranks.close()


def test_bfloat16_logits_are_close_to_the_models_own():
    """Linear layers are prepacked then, also those whose weight the layer reads itself."""
    for family in ("mamba", "mamba2"):
        module = worker_families.build(family, dtype=torch.bfloat16)
        assert worker_tools.loaded(module).states.mixers

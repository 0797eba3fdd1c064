"""Tokens with adapters are those of peft: each row alone, all rows together, in fused and plain layers (issue 10)."""

from __future__ import annotations

import copy

import lora_tools
import parallel_tools
import pytest
import worker_driver
import worker_families
import worker_tools

pytestmark = pytest.mark.slow  # whole models

NAMES = [f"a{rank}" for rank in lora_tools.RANKS]
# Rows with every adapter, some of them twice, and rows without.
ROWS = [*NAMES, None, NAMES[3], None, NAMES[0]]
LENGTHS = (5, 17, 1, 9, 13, 6, 3, 8, 4, 12, 7, 10)


@pytest.fixture(scope="module")
def family():
    return worker_families.build("llama")


@pytest.fixture(scope="module")
def peft(family, tmp_path_factory):
    return lora_tools.Peft(family, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def wanted(peft):
    prompts = worker_tools.prompts(LENGTHS)
    return [peft.generate(name, prompt) for name, prompt in zip(ROWS, prompts, strict=True)]


def requests_of(adapters):
    return [
        worker_driver.Request(
            number + 1,
            prompt,
            max_tokens=lora_tools.NUM_TOKENS,
            adapter=None if name is None else lora_tools.loaded(adapters, name),
        )
        for number, (name, prompt) in enumerate(
            zip(ROWS, worker_tools.prompts(LENGTHS), strict=True)
        )
    ]


def outputs(runner, requests, **options):
    sizes = {"max_num_seqs": 12, "num_blocks": 160, "block_size": 4} | options
    driver = worker_driver.Driver(runner.answer, **sizes)
    return [request.output for request in driver.run(requests)]


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.slow
def test_all_together_each_alone_and_in_chunks_with_preemption(family, peft, wanted, fuse):
    runner = lora_tools.runner(copy.deepcopy(family), fuse=fuse)
    for name in NAMES:
        assert runner.model.adapters.add(name, peft.path(name))
    assert outputs(runner, requests_of(runner.model.adapters)) == wanted
    for request, tokens in zip(requests_of(runner.model.adapters), wanted, strict=True):
        assert outputs(runner, [request]) == [tokens]
    small_steps = {"budget": 7, "preempt_every": 5}
    assert outputs(runner, requests_of(runner.model.adapters), **small_steps) == wanted


def test_the_adapters_make_different_answers(wanted):
    assert len({tuple(tokens) for tokens in wanted}) == len(wanted)


@pytest.mark.parametrize("fuse", [True, False])
def test_on_two_ranks(family, peft, wanted, fuse, tmp_path):
    """Layers cut along their outputs get a part of B, those cut along their inputs a part of A."""
    family.save_pretrained(tmp_path)
    ranks = parallel_tools.Ranks(
        tmp_path, tp=2, fuse=fuse, max_loras=8, max_num_seqs=12, num_blocks=160
    )
    try:
        for runner in ranks.runners:
            for name in NAMES:
                runner.model.adapters.add(name, peft.path(name))
        requests = requests_of(ranks.runners[0].model.adapters)
        assert outputs(ranks, requests, budget=20) == wanted
    finally:
        ranks.close()


@pytest.mark.parametrize("name", ["qwen3", "phi3", "qwen2_moe", "gemma2"])
@pytest.mark.slow
def test_other_families(name, tmp_path):
    """Merged projections in the model itself, norms of heads, experts in addition to linear layers."""
    module = worker_families.build(name)
    merged = name == "phi3"
    layers = ["qkv_proj", "gate_up_proj"] if merged else ["q_proj", "k_proj", "v_proj", "o_proj"]
    peft = lora_tools.Peft(module, tmp_path, ranks=(4,), target_modules=layers)
    runner = lora_tools.runner(copy.deepcopy(module))
    runner.model.adapters.add("a4", peft.path("a4"))
    prompts = worker_tools.prompts((7, 12))
    adapter = lora_tools.loaded(runner.model.adapters, "a4")
    requests = [
        worker_driver.Request(1, prompts[0], adapter=adapter),
        worker_driver.Request(2, prompts[1]),
        worker_driver.Request(3, prompts[1], adapter=adapter),
    ]
    assert outputs(runner, requests) == [
        peft.generate("a4", prompts[0]),
        peft.generate(None, prompts[1]),
        peft.generate("a4", prompts[1]),
    ]

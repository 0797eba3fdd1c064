"""Models that count positions on from the length of their cache get each token's own."""

from __future__ import annotations

import torch
import worker_families
import worker_tools
from worker_driver import Driver, Request

from tenonry_torch_base.parallel.stage import stage_of
from tenonry_torch_base.step_cache import StepCache, step_cache_for


def test_positions_count_on_from_each_tokens_own_start():
    cache = StepCache()
    assert cache.get_seq_length() == 0
    cache.positions = torch.tensor([7, 8, 9, 3, 0, 1])
    assert (torch.arange(6) + cache.get_seq_length(2)).tolist() == [7, 8, 9, 3, 0, 1]


def test_only_models_that_count_so_are_given_one():
    assert step_cache_for(worker_families.build("llama")) is None
    assert step_cache_for(worker_families.build("gpt_oss")) is None
    assert isinstance(step_cache_for(worker_families.build("llama4")), StepCache)
    assert stage_of(worker_tools.loaded(worker_families.build("llama")).module).cache is None


def test_llama_4_beyond_where_its_queries_begin_to_be_scaled():
    """With the scale's floor at 40 positions, the short prompts of the self check hardly see it; long requests do."""
    name, values = worker_families.FAMILIES["llama4"]
    build = worker_families.build
    worker_families.FAMILIES["llama4-long"] = (
        name,
        values | {"floor_scale": 40, "attn_scale": 3.0},
    )
    worker_families.SEEDS["llama4-long"] = 4
    try:
        model = worker_tools.loaded(build("llama4-long"), max_model_len=128)
        reference = build("llama4-long")
    finally:
        del worker_families.FAMILIES["llama4-long"], worker_families.SEEDS["llama4-long"]
    runner = worker_tools.runner(model, max_model_len=128)
    prompts = worker_tools.prompts((70, 3, 50))
    requests = [Request(i + 1, prompt, max_tokens=8) for i, prompt in enumerate(prompts)]
    Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4, budget=31).run(requests)
    for request in requests:
        wanted = reference.generate(
            torch.tensor([request.prompt]), max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
        )  # fmt: skip
        assert request.output == wanted[0, len(request.prompt) :].tolist()

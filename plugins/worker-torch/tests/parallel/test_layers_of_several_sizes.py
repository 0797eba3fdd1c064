"""Layers whose heads differ in number and size from layer to layer, cut for two ranks: Gemma 4 with experts."""

from __future__ import annotations

import parallel_tools
import pytest
import worker_families
import worker_tools
from worker_driver import Driver, Request

MIXTURE = worker_families.SMALL | {
    "head_dim": 16, "global_head_dim": 32, "num_hidden_layers": 3, "enable_moe_block": True, "num_experts": 4,
    "top_k_experts": 2, "moe_intermediate_size": 32, "sliding_window": 6, "num_kv_shared_layers": 0,
    "num_global_key_value_heads": 1, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}  # fmt: skip


@pytest.mark.slow
def test_two_ranks_answer_as_generate(monkeypatch, tmp_path):
    monkeypatch.setitem(worker_families.FAMILIES, "mixture", ("gemma4_text", MIXTURE))
    monkeypatch.setitem(worker_families.SEEDS, "mixture", 3)
    worker_families.save("mixture", tmp_path)
    prompts = worker_tools.prompts((5, 17))
    reference = worker_families.build("mixture")
    wanted = [worker_tools.greedy(reference, prompt) for prompt in prompts]
    for tp in (1, 2):
        ranks = parallel_tools.Ranks(tmp_path, tp=tp)
        try:
            requests = [
                Request(i + 1, prompt, max_tokens=worker_tools.OUTPUT_LENGTH)
                for i, prompt in enumerate(prompts)
            ]
            Driver(ranks.answer, max_num_seqs=6, num_blocks=96, block_size=4).run(requests)
            assert [request.output for request in requests] == wanted
        finally:
            ranks.close()

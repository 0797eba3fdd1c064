"""Recurrent layers in an engine: a shared prefix is computed once, and no token depends on it (KV-2)."""

from __future__ import annotations

import functools

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tenonry import LLM, SamplingParams

SHARED = [(7 * i + 3) % 90 for i in range(512)]
PROMPTS = [[*SHARED, *range(10 + i, 20 + 2 * i)] for i in range(4)]
SHORT = [5, 6, 7, 8, 9] * 9
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
COMMON = {
    "vocab_size": 96,
    "hidden_size": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 1024,
}
FAMILIES = {
    "qwen3_next": COMMON
    | {
        "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
        "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
    },
    "mamba2": COMMON
    | {
        "num_hidden_layers": 2, "expand": 2, "conv_kernel": 4, "num_heads": 8, "head_dim": 16, "state_size": 16,
        "n_groups": 2, "chunk_size": 16,
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    """A small model with random weights, saved."""
    torch.manual_seed(11)
    config = AutoConfig.for_model(request.param, **FAMILIES[request.param])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    path = tmp_path_factory.mktemp("models") / request.param
    model.save_pretrained(path)
    return path


@functools.cache
def generated(folder) -> list[list[int]]:
    """Answers of `generate` to each prompt, one at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    for prompt in [*PROMPTS, SHORT]:
        ids = torch.tensor([prompt])
        whole = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=6,
            min_new_tokens=6,
        )
        answers.append(whole[0, len(prompt) :].tolist())
    return answers


def engine(folder, **settings) -> LLM:
    return LLM(
        model=str(folder),
        worker="torch",
        skip_tokenizer_init=True,
        max_num_seqs=8,
        max_model_len=600,
        block_size=16,
        device="cpu",
        **settings,
    )


def run(llm, prompts) -> tuple[list[list[int]], list[int]]:
    """Token ids and cached tokens of each prompt."""
    outputs = llm.generate(prompts, GREEDY)
    ids = [list(output.outputs[0].token_ids) for output in outputs]
    return ids, [output.num_cached_tokens for output in outputs]


@pytest.mark.usefixtures("one_thread")
class TestSharedPrefix:
    @pytest.mark.nightly_after(1)
    def test_it_is_computed_once(self, folder):
        with engine(folder) as llm:
            first, cached = run(llm, [*PROMPTS[:1], SHORT])
            assert cached == [0, 0]
            others, cached = run(llm, PROMPTS[1:])
            assert cached == [512] * 3
            again, cached = run(llm, [SHORT, PROMPTS[0]])
            assert cached == [32, 512]
        assert [first[0], *others, first[1]] == generated(folder)
        assert again == [first[1], first[0]]

    @pytest.mark.nightly_after(1)
    def test_prompts_that_come_together_wait_for_the_first(self, folder):
        with engine(folder) as llm:
            ids, cached = run(llm, [PROMPTS[0]] * 3 + PROMPTS[1:])
        assert ids == [generated(folder)[0]] * 3 + generated(folder)[1:4]
        assert cached[0] == 0
        assert min(cached[1:]) == 512

    @pytest.mark.nightly_after(1)
    def test_a_beginning_of_any_length_is_found_the_third_time(self, folder):
        """300 tokens are alike: no multiple of the interval, and not the end of a prompt."""
        prompts = [[*SHARED[:300], *[20 + i] * 30] for i in range(3)]
        with engine(folder) as llm:
            each = [run(llm, [prompt]) for prompt in prompts]
        assert [cached for _, cached in each] == [[0], [0], [288]]
        with engine(folder, state_cache_memory_bytes=0) as llm:
            assert run(llm, prompts)[0] == [ids[0] for ids, _ in each]

    @pytest.mark.nightly_after(1)
    def test_switched_off_nothing_changes_but_the_work(self, folder):
        with engine(folder, state_cache_memory_bytes=0) as llm:
            for _ in range(2):
                ids, cached = run(llm, [*PROMPTS, SHORT])
                assert ids == generated(folder)
                assert cached == [0] * 5

    @pytest.mark.nightly_after(1)
    def test_few_slots_and_few_blocks(self, folder):
        """Room for one prompt and a few snapshots: the cached ones are replaced all the time."""
        options = {"state_snapshot_interval": 64, "long_prefill_token_threshold": 50}
        settings = {
            "state_cache_memory_bytes": 40_000,
            "num_gpu_blocks_override": 60,
            "scheduler": {"name": "batching", "options": options},
        }
        with engine(folder, **settings) as llm:
            for _ in range(2):
                ids, _ = run(llm, [*PROMPTS, SHORT])
                assert ids == generated(folder)

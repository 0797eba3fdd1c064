"""Greedy tokens of the whole engine equal transformers' `generate` in float32: every family, however the batch is cut.

Six prompts of mixed length run together through `LLM` with the batching scheduler: in one big batch, in chunks, in a
pool so small that requests are preempted, with the prefix cache on and off, with one, two and three steps in flight.
A family of each kind of attention is served in every way, the others at night; the worker's own tests serve every
family without an engine, and `test_fast_path` has families of its own.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import pytest
import torch

from tenonry import LLM, SamplingParams
from tenonry.kv_cache import sequence_pages
from tenonry_testkit.tiers import diagonal, nightly_unless

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
OUTPUT_LENGTH = 12
PROMPT_LENGTHS = (5, 17, 1, 33, 9, 26)
SETTINGS = {
    "executor": "uni", "scheduler": "batching", "dtype": "float32", "device": "cpu", "max_num_seqs": 6,
    "max_model_len": 64, "block_size": 4, "skip_tokenizer_init": True,
}  # fmt: skip
WAYS = {
    "chunked prefill": {"max_num_batched_tokens": 8},
    "no prefix cache": {"enable_prefix_caching": False},
    "preemption": {"num_gpu_blocks_override": 20, "enable_prefix_caching": False},
    "preemption in chunks with a prefix cache": {
        "num_gpu_blocks_override": 22,
        "max_num_batched_tokens": 11,
    },
    "two steps in flight": {"worker": "{deep}:TwoSteps"},
    "three steps in flight": {"worker": "{deep}:ThreeSteps", "max_num_batched_tokens": 16},
}
# Positions in the input and biases; windows and soft caps; experts; latents as keys; layers that share their K/V.
EVERY_WAY = {"gpt2", "gemma2", "mixtral", "deepseek_v3", "gemma3n"}
COMBINED = {"preemption in chunks with a prefix cache", "three steps in flight"}
ELSEWHERE = {"gpt_oss", "llama4", "gemma3", "gemma4", "deepseek_v32"}  # in `test_fast_path`
DEEP = """
from tenonry_worker_torch.worker import TorchWorker

class TwoSteps(TorchWorker):
    steps_in_flight = 2

class ThreeSteps(TorchWorker):
    steps_in_flight = 3
"""


def load_families():
    """The small random models of the worker's own tests."""
    path = ROOT / "plugins" / "worker-torch" / "tests" / "worker_families.py"
    spec = importlib.util.spec_from_file_location("worker_families_of_integration", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


families = load_families()


class Family:
    """One small model: its folder, reference answers of `generate`, and an engine that serves it as usual."""

    def __init__(self, name, root):
        self.module = families.build(name)
        self.folder = root / name
        self.module.save_pretrained(self.folder)
        self.deep = root / "deep.py"
        self.deep.write_text(DEEP)
        self.usual = self.engine()
        self.kv_groups = self.usual.engine_core.kv_cache.groups  # in every way of serving

    def engine(self, **changes):
        return LLM(model=str(self.folder), **(SETTINGS | changes))

    @functools.cache  # noqa: B019 - there are few families, and they live as long as this module
    def generated(self, shared=0):
        return [
            self.module.generate(
                torch.tensor([prompt]),
                max_new_tokens=OUTPUT_LENGTH,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )[0, len(prompt) :].tolist()
            for prompt in prompts(shared)
        ]

    def changes(self, way):
        """Settings for this way of serving; windows release blocks, so their pool is computed."""
        changes = {
            key: value.format(deep=self.deep) if isinstance(value, str) else value
            for key, value in WAYS[way].items()
        }
        if "preemption" in way and any(group.kind == "sliding" for group in self.kv_groups):
            chunk = changes.get("max_num_batched_tokens", 8)
            changes["num_gpu_blocks_override"] = sequence_pages(self.kv_groups, 64, 4, chunk)
            changes["max_num_batched_tokens"] = chunk
        return changes


# Those that are served in every way come first: all tests number the families alike, so that pytest keeps each family's
# tests together, and one engine after the other is open.
FAMILIES = sorted(
    set(families.FAMILIES) - ELSEWHERE, key=lambda name: (name not in EVERY_WAY, name)
)


@pytest.fixture(scope="module", params=nightly_unless(lambda name: name in EVERY_WAY, FAMILIES))
def family(request, tmp_path_factory):
    made = Family(request.param, tmp_path_factory.mktemp("models"))
    with made.usual:
        yield made


def prompts(shared=0):
    generator = torch.Generator().manual_seed(0)
    start = torch.randint(3, 96, (shared,), generator=generator).tolist()
    return [
        start + torch.randint(3, 96, (length,), generator=generator).tolist()
        for length in PROMPT_LENGTHS
    ]


def serve(llm, ids):
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in ids],
        SamplingParams(
            temperature=0.0, max_tokens=OUTPUT_LENGTH, ignore_eos=True, detokenize=False
        ),
        use_tqdm=False,
    )
    return [output.outputs[0].token_ids for output in outputs], outputs


def serve_in(family, way):
    with family.engine(**family.changes(way)) as llm:
        tokens, outputs = serve(llm, prompts())
    assert tokens == family.generated()
    if "preemption" in way:
        # With windows alone, those that have started hold no more blocks later on.
        keeps_all = any(group.kind != "sliding" for group in family.kv_groups)
        preemptions = sum(output.metrics.num_preemptions for output in outputs)
        assert preemptions > 0 or not keeps_all


@pytest.mark.nightly_after(1)
def test_tokens_equal_generate_in_one_big_batch(family):
    tokens, _ = serve(family.usual, prompts())
    assert tokens == family.generated()


@pytest.mark.parametrize("way", sorted(COMBINED))
@pytest.mark.nightly
def test_tokens_equal_generate_in_ways_that_combine_several(family, way):
    serve_in(family, way)


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(
    ("family", "way"),
    diagonal(FAMILIES[: len(EVERY_WAY)], [way for way in WAYS if way not in COMBINED]),
    indirect=["family"],
)
def test_tokens_equal_generate_in_each_other_way(family, way):
    serve_in(family, way)


@pytest.mark.nightly_after(2)
def test_tokens_equal_generate_when_most_of_a_prompt_is_cached(family):
    """Prompts with a common beginning, twice: the second time every full block but the last is found."""
    for _ in range(2):
        tokens, outputs = serve(family.usual, prompts(shared=14))
        assert tokens == family.generated(14)
    assert sum(output.num_cached_tokens for output in outputs) > 6 * 12

"""Tokens of an engine with several ranks equal those of one process: greedy ones transformers' `generate` in float32,
random ones the same engine with one rank. Tensor parallel, pipeline parallel, and both; gloo between real processes.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from tenonry import LLM, SamplingParams

# Processes that load torch start slowly where two cores are busy.
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("one_thread")]
HERE = Path(__file__).parent
OUTPUT_LENGTH = 10
PROMPT_LENGTHS = (5, 17, 1, 33, 9, 26)
SETTINGS = {
    "worker": "torch", "scheduler": "batching", "dtype": "float32", "device": "cpu", "max_num_seqs": 6,
    "max_num_batched_tokens": 24,
    "max_model_len": 64, "block_size": 4, "skip_tokenizer_init": True,
}  # fmt: skip
LAYOUTS = {"TP 2": (2, 1), "PP 2": (1, 2), "TP 2 x PP 2": (2, 2)}
# llama-biased has tied embeddings and biases; gemma2 and gemma3 sliding windows; mixtral experts.
FAMILIES = ("llama-biased", "gemma3", "mixtral")
# Threads in place of processes, in the worker's own tests, do the same for every family and layout.
CASES = [
    *((family, "TP 2 x PP 2") for family in FAMILIES),
    *(("llama-biased", layout) for layout in ("TP 2", "PP 2")),
    ("gemma2", "PP 2"),
]


def load(name, path):
    """A module of the tests by its path, importable under `name` from then on."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


families = load(
    "families_of_parallel_tests",
    HERE.parents[1] / "plugins" / "worker-torch" / "tests" / "worker_families.py",
)
rank_pool = load("rank_pool_of_parallel_tests", HERE / "rank_pool.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")

    @functools.cache
    def saved(family):
        families.save(family, root / family)
        return str(root / family)

    return saved


@pytest.fixture(scope="module")
def pool(folder):
    """Four processes for all layouts; they import no family's code again."""
    for family, _ in CASES:
        folder(family)
    made = rank_pool.PooledExecutor.pool = rank_pool.Pool(4)
    yield made
    assert made.close() == 0


def prompts():
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(3, 96, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS
    ]


@functools.cache
def generated(family):
    model = families.build(family)
    return [
        model.generate(
            torch.tensor([prompt]),
            max_new_tokens=OUTPUT_LENGTH,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        for prompt in prompts()
    ]


def params(**more):
    return SamplingParams(max_tokens=OUTPUT_LENGTH, ignore_eos=True, detokenize=False, **more)


def greedy():
    return [params(temperature=0.0) for _ in PROMPT_LENGTHS]


def seeded():
    return [
        params(temperature=0.8, top_p=0.9, seed=number) for number in range(len(PROMPT_LENGTHS))
    ]


def serve(llm, sampling):
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts()], sampling, use_tqdm=False
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


@functools.cache
def drawn(path):
    """Random tokens of an engine with one rank."""
    with LLM(model=path, executor="uni", **SETTINGS) as llm:
        return serve(llm, seeded())


def pooled(path, layout, **more):
    tp, pp = LAYOUTS[layout]
    settings = SETTINGS | {"tensor_parallel_size": tp, "pipeline_parallel_size": pp} | more
    return LLM(model=path, executor=f"{rank_pool.__name__}:PooledExecutor", **settings)


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(("family", "layout"), CASES)
def test_tokens_are_those_of_one_process(pool, folder, family, layout):
    """Prompts come in chunks; some are found in the prefix cache the second time."""
    path = folder(family)
    with pooled(path, layout) as llm:
        assert serve(llm, greedy()) == generated(family)
        assert serve(llm, seeded()) == drawn(path)


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("family", ["qwen3", "mixtral"])
def test_ranks_share_kv_heads_when_there_are_fewer(pool, folder, family):
    with pooled(folder(family), "TP 2", tensor_parallel_size=4) as llm:
        assert serve(llm, greedy()) == generated(family)


def test_preempted_requests_come_back_the_same(pool, folder):
    more = {
        "num_gpu_blocks_override": 20,
        "enable_prefix_caching": False,
        "max_num_batched_tokens": 64,
    }
    with pooled(folder("qwen3"), "TP 2 x PP 2", **more) as llm:
        assert serve(llm, greedy()) == generated("qwen3")


@pytest.mark.parametrize(
    "sizes",
    [
        {"tensor_parallel_size": 2},
        pytest.param(
            {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, marks=pytest.mark.nightly
        ),
    ],
)
def test_the_mp_executor_gives_the_same_tokens(folder, sizes, request):
    """As users run it: a process per rank, started for this engine. Two are fresh interpreters, four are forks."""
    if len(sizes) > 1:
        request.getfixturevalue("forked_children")
    with LLM(model=folder("llama-biased"), executor="mp", **SETTINGS, **sizes) as llm:
        assert serve(llm, greedy()) == generated("llama-biased")
        assert serve(llm, seeded()) == drawn(folder("llama-biased"))


@pytest.mark.parametrize(
    ("family", "sizes", "text"),
    [
        (
            "gpt2",
            {"tensor_parallel_size": 2},
            "no tensor parallel plan .* use tensor_parallel_size=1",
        ),
        (
            "opt",
            {"pipeline_parallel_size": 2},
            "no pipeline parallel plan .* use pipeline_parallel_size=1",
        ),
        (
            "qwen3",
            {"tensor_parallel_size": 3},
            "4 attention heads, which tensor_parallel_size=3 does not divide",
        ),
        ("qwen3", {"pipeline_parallel_size": 4}, "3 layers, but pipeline_parallel_size=4"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_by_name(pool, folder, family, sizes, text):
    with pytest.raises(rank_pool.RankError, match=text):
        pooled(folder(family), "TP 2", **({"tensor_parallel_size": 1} | sizes))

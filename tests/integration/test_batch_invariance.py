"""With `--batch-invariant` every bit of a request's results is the same alone and in any batch (WK-14): with others, in
chunks, after preemptions, from blocks of the prefix cache that another request wrote, in multi-token steps and with
drafts.
"""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

from tenonry import LLM, SamplingParams
from tenonry.errors import ConfigError
from tenonry_kernels_cpu.kernels import CpuKernels

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built"),
]
ROOT = Path(__file__).parents[2]
SETTINGS = {
    "batch_invariant": True, "executor": "uni", "device": "cpu", "max_num_seqs": 6,
    "max_model_len": 64, "block_size": 4, "skip_tokenizer_init": True,
}  # fmt: skip
WAYS = {
    "together": {},
    "in chunks": {"max_num_batched_tokens": 7},
    "in few blocks": {"num_gpu_blocks_override": 22, "max_num_batched_tokens": 11},
    "without rounds or a prefix cache": {"max_round_tokens": 1, "enable_prefix_caching": False},
    "with drafts": {"drafter": "ngram"},
}
OUTPUT_LENGTH = 12
VOCAB = 96


@pytest.fixture(
    scope="module",
    params=[("qwen3", "float32"), ("mistral", "float32"), ("llama", "bfloat16")],
    ids="-".join,
)
def served_model(request, tmp_path_factory):
    """A folder, and in which data type it is served."""
    path = ROOT / "plugins" / "worker-torch" / "tests" / "worker_families.py"
    spec = importlib.util.spec_from_file_location("families_of_batch_invariance", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    family, dtype = request.param
    made = tmp_path_factory.mktemp(family)
    module.build(family).save_pretrained(made)
    return {"model": str(made), "dtype": dtype}


def requests():
    """Prompts of which some begin alike, and one repeats itself, so that a drafter has guesses."""
    drawn = random.Random(3)
    shared = [drawn.randrange(3, VOCAB) for _ in range(21)]
    ends = [[drawn.randrange(3, VOCAB) for _ in range(count)] for count in (1, 4, 9, 17)]
    prompts = [shared + end for end in ends]
    prompts += [[5], shared[:4] * 6, ends[3], ends[2]]
    return [{"prompt_token_ids": prompt} for prompt in prompts]


def sampling(number):
    return SamplingParams(
        temperature=0.0 if number % 2 else 1.0,
        seed=number,
        top_p=0.9,
        max_tokens=OUTPUT_LENGTH,
        ignore_eos=True,
        logprobs=8 if number % 3 else None,
    )


def answers(llm, chosen=None):
    """Tokens, and the bits of their log-probabilities, of each request; `chosen`: of that one alone."""
    return [bits(output.outputs[0]) for output in served(llm, chosen)]


def served(llm, chosen=None):
    numbers = range(len(requests())) if chosen is None else [chosen]
    every = requests()
    return llm.generate(
        [every[number] for number in numbers], [sampling(number) for number in numbers]
    )


def bits(completion):
    logprobs = [
        sorted((token, each.logprob.hex()) for token, each in position.items())
        for position in completion.logprobs or ()
    ]
    return list(completion.token_ids), logprobs


@pytest.fixture(scope="module")
def alone(served_model):
    """Results of each request with no other before or during it."""
    with LLM(**served_model, **SETTINGS | {"enable_prefix_caching": False}) as llm:
        return [answers(llm, number)[0] for number in range(len(requests()))]


@pytest.mark.nightly_after(2)
@pytest.mark.parametrize("way", WAYS)
def test_bits_of_a_request_are_those_that_it_gets_alone(served_model, alone, way):
    with LLM(**served_model, **SETTINGS | WAYS[way]) as llm:
        first = served(llm)
        again = served(llm)
        assert answers(llm, 2) == [alone[2]]
    assert [bits(output.outputs[0]) for output in first] == alone
    assert [bits(output.outputs[0]) for output in again] == alone
    has_cache = WAYS[way].get("enable_prefix_caching", True)
    assert (sum(output.num_cached_tokens for output in again) > 0) is has_cache
    preemptions = sum(output.metrics.num_preemptions for output in first + again)
    gives_back = (
        "mistral" in served_model["model"]
    )  # the blocks that its window has left, so few are enough
    assert (preemptions > 0) is (way == "in few blocks" and not gives_back)


@pytest.mark.nightly
def test_demo_model_can_be_served_so():
    settings = SETTINGS | {"skip_tokenizer_init": False, "model": "demo", "dtype": "float32"}
    with LLM(**settings) as llm:
        together = answers(llm)
        llm.reset_prefix_cache()
        assert [answers(llm, number)[0] for number in range(len(requests()))] == together
        llm.sleep(level=2)
        llm.wake_up()
        assert answers(llm) == together  # with weights that were read and laid out again
        (text,) = llm.collective_rpc("chosen_kernels")
    assert "the same bits for a token whatever runs beside it" in text


@pytest.mark.parametrize(
    ("worker", "text"),
    [
        ("transformers", "batch_invariant=True: .*transformers.*lacks"),
        ("null", "setting 'batch_invariant' belongs to worker 'pooling'.* and worker 'torch'"),
    ],
)
def test_workers_that_promise_nothing_refuse_it(worker, text):
    with pytest.raises(ConfigError, match=text):
        LLM(model="demo", worker=worker, batch_invariant=True, device="cpu")

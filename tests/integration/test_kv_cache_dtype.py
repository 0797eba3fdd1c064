"""`--kv-cache-dtype`: the demo model's tokens with K and V in 8 bits, however they come into the cache and wherever its
blocks go.
"""

from __future__ import annotations

import functools
import json

import pytest
from server_process import ForkedServer

from tenonry import LLM, SamplingParams
from tenonry.cli import main
from tenonry.errors import ConfigError, TenonryError

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = {
    "model": "demo", "worker": "torch", "device": "cpu", "dtype": "float32", "block_size": 16, "max_num_seqs": 8,
    "kv_cache_memory_bytes": 16 << 20, "executor": "uni",
}  # fmt: skip
STORY = "Once upon a time there was a little girl named Lily. She liked to play in the garden with her dog. "
PROMPTS = [
    "Once upon a time",
    "The dog",
    STORY + "One day",
    STORY + "Her mother said",
    "What is three plus four?",
]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
KINDS = ["int8", "fp8"]
BYTES = {"auto": 4 * 2 * 2 * 64 * 4, "int8": 4 * 2 * 2 * 66, "fp8": 4 * 2 * 2 * 66}  # of a token


def tokens(llm, prompts=PROMPTS):
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@functools.cache
def of_one_engine(kind):
    with LLM(**SETTINGS, kv_cache_dtype=kind) as llm:
        return tokens(llm)


def test_tokens_are_those_of_floats():
    assert of_one_engine("int8") == of_one_engine("auto")


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(("kind", "most"), [("int8", 0.3), ("fp8", 2.2)])
def test_logits_stay_near(kind, most):
    """Log-probabilities of the five likeliest tokens behind each token of a text: 0.17 and 1.1 were measured."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=5)
    rows = {}
    for kept in ("auto", kind):
        with LLM(**SETTINGS, kv_cache_dtype=kept) as llm:
            (made,) = llm.generate([3 * STORY], params, use_tqdm=False)
        rows[kept] = made.prompt_logprobs[1:]
    errors = [
        abs(near[token].logprob - entry.logprob)
        for exact, near in zip(rows["auto"], rows[kind], strict=True)
        for token, entry in exact.items()
        if token in near
    ]
    assert 0 < max(errors) < most


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_that_is_found_is_as_good_as_one_that_is_computed(kind):
    with LLM(**SETTINGS, kv_cache_dtype=kind, max_num_batched_tokens=24) as llm:
        assert [tokens(llm, [prompt])[0] for prompt in PROMPTS] == of_one_engine(kind)
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [list(output.outputs[0].token_ids) for output in outputs] == of_one_engine(kind)
    assert [output.num_cached_tokens >= 16 for output in outputs] == [
        False,
        False,
        True,
        True,
        False,
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_go_to_memory_and_disk_and_come_back(kind, tmp_path):
    """The next engine finds them there; one that keeps K and V in another way does not."""
    options = {"connectors": "host,disk", "host.size": "8MiB", "disk.directory": str(tmp_path)}
    connector = {"name": "chain", "options": options}
    settings = {**SETTINGS, "enable_prefix_caching": False, "kv_connector": connector}

    def served(kept):
        with LLM(**settings, kv_cache_dtype=kept) as llm:
            found = tokens(llm)
            assert tokens(llm) == found
            return found

    assert served(kind) == served(kind) == of_one_engine(kind)
    num_files = len(list(tmp_path.rglob("*")))
    other = next(name for name in KINDS if name != kind)
    assert served(other) == of_one_engine(other)
    assert len(list(tmp_path.rglob("*"))) > num_files


def test_drafts_are_verified_and_a_cache_comes_back_after_sleep():
    with LLM(**SETTINGS, kv_cache_dtype="int8", drafter="ngram") as llm:
        assert tokens(llm) == of_one_engine("int8")
        llm.sleep(level=2)
        llm.wake_up()
        assert tokens(llm) == of_one_engine("int8")


@pytest.mark.usefixtures("forked_children")
@pytest.mark.nightly
def test_two_ranks_keep_their_own_heads():
    settings = {**SETTINGS, "executor": "mp", "tensor_parallel_size": 2}
    with LLM(**settings, kv_cache_dtype="int8") as llm:
        assert tokens(llm) == of_one_engine("int8")


@pytest.mark.nightly
def test_two_api_servers_serve_it():
    server = ForkedServer(
        "demo", "--load-format", "auto", "--worker", "torch", "--dtype", "float32", "--device", "cpu",
        "--api-server-count", "2", "--kv-cache-dtype", "int8", "--kv-cache-memory-bytes", "16M", OMP_NUM_THREADS="1",
    )  # fmt: skip
    try:
        server.ready()
        for prompt, wanted in zip(PROMPTS, of_one_engine("int8"), strict=True):
            answer = server.client().completions.create(
                model="tiny", prompt=prompt, max_tokens=24, temperature=0,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )  # fmt: skip
            assert answer.choices[0].token_ids == wanted
        server.wait_for(
            f"(KV cache in int8: {BYTES['int8']} bytes per token in place of {BYTES['auto']})"
        )
    finally:
        server.close()


@pytest.mark.parametrize("kind", ["auto", *KINDS])
def test_a_check_of_the_model_counts_the_bytes(kind, capsys):
    flags = [
        "--json",
        "--worker",
        "torch",
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--memory",
        "1G",
    ]
    assert main(["models", "check", "demo", *flags, "--kv-cache-dtype", kind]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kv_bytes_per_token"] == BYTES[kind]
    assert found["features"].get("kv_cache_dtype", "auto") == kind


def test_a_word_that_is_none_of_them_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match=r"kv_cache_dtype='int4': .*'auto', 'int8' or 'fp8'"):
        LLM(**SETTINGS, kv_cache_dtype="int4")


@pytest.mark.parametrize("worker", ["transformers", "pooling"])
def test_workers_that_cannot_say_so(worker):
    with pytest.raises(TenonryError, match=r"kv_cache_dtype=int8: worker .* leave it out"):
        LLM(**{**SETTINGS, "worker": worker}, kv_cache_dtype="int8")

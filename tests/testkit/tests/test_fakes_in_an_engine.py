"""The fakes are parts of an engine like any others: a whole one runs on them, without torch and without files."""

from __future__ import annotations

import pytest

from tenonry import LLM, SamplingParams
from tenonry_testkit.fakes import TokenModel
from tenonry_testkit.fakes.connector import STORES, memory_store

PARTS = {
    "worker": "tenonry_testkit.fakes.worker:FakeWorker",
    "executor": "tenonry_testkit.fakes.executor:InstantExecutor",
    "io_processor": "tenonry_testkit.fakes.io_processor:ByteIOProcessor",
    "scheduler": "tenonry_testkit.fakes.scheduler:ReferenceScheduler",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
    "block_size": 4,
    "num_gpu_blocks_override": 20,
}
PROMPTS = ["one", "two and more", "three is the longest of these prompts"]
GREEDY = SamplingParams(temperature=0, max_tokens=9)


@pytest.fixture
def make_llm(tmp_plugins):
    tmp_plugins.distribution(
        "fake-model", entry_points={"tenonry.plugins": {"fake": "tenonry_testkit.fakes.model"}}
    )
    engines = []

    def make(**settings):
        engines.append(LLM(model="fake", **{**PARTS, **settings}))
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown()


def expected(prompt, params=GREEDY, vocab_size=512):
    ids = list(prompt.encode())
    return TokenModel(vocab_size).complete(ids, params, max_model_len=64).token_ids


@pytest.mark.parametrize("options", [{}, {"depth": 2}, {"depth": 3, "late": True}], ids=str)
def test_engine_on_fakes_gives_the_tokens_that_the_arithmetic_says(make_llm, options):
    llm = make_llm(executor={"name": PARTS["executor"], "options": options})
    outputs = llm.generate(PROMPTS, GREEDY)
    # An unseeded request gets its seed at the front end; the fake's tokens depend on it.
    seeded = [SamplingParams(temperature=0, max_tokens=9, seed=4)] * 3
    assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS, seeded)] == [
        expected(prompt, seeded[0]) for prompt in PROMPTS
    ]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 9, 9]


def test_row_failure_in_a_prompt_ends_that_request_alone(make_llm):
    llm = make_llm(worker={"name": PARTS["worker"], "options": {"fail_row_token": ord("!")}})
    good, bad = llm.generate(["calm", "oh!"], SamplingParams(max_tokens=3, seed=1))
    assert good.outputs[0].finish_reason == "length"
    assert (bad.outputs[0].finish_reason, bool(bad.error)) == ("error", True)


def test_step_failure_in_a_prompt_ends_the_engine_loudly(make_llm):
    llm = make_llm(worker={"name": PARTS["worker"], "options": {"fail_step_token": ord("!")}})
    with pytest.raises(Exception, match="told to fail on token 33"):
        llm.generate(["oh!"], GREEDY)


def test_logprobs_have_their_shapes(make_llm):
    params = SamplingParams(max_tokens=3, seed=1, logprobs=2, prompt_logprobs=1)
    output = make_llm().generate(["abcd"], params)[0]
    assert [len(position) for position in output.outputs[0].logprobs] == [3, 3, 3]
    assert len(output.prompt_logprobs) == 4


def test_kv_connector_of_the_kit_runs_in_both_halves(make_llm):
    """Token identity: the second engine loads the blocks that the first one computed."""
    connector = {
        "name": "tenonry_testkit.fakes.connector:MemoryConnector",
        "options": {"store": "llm"},
    }
    params = SamplingParams(max_tokens=5, seed=2)
    prompt = "a prompt of some length"
    try:
        outputs = []
        for _ in range(2):
            llm = make_llm(
                kv_connector=connector, scheduler="tenonry_testkit.worker:CachingScheduler"
            )
            outputs.append(llm.generate([prompt, "another"], params))
        assert [[o.outputs[0].token_ids for o in each] for each in outputs] == [
            [expected(text, params) for text in (prompt, "another")]
        ] * 2
        assert memory_store("llm").num_saved > 0
        assert outputs[1][0].num_cached_tokens >= 16
        assert memory_store("llm").num_loaded >= 4
    finally:
        STORES.pop("llm", None)

"""Multi-token steps change no token: the demo model, real processes.

The oracle is an engine that decodes one token a step. Timing is not part of it: the time limit of a multi-token step is
so long that it always has its maximum length.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from streams import one_by_one

from tenonry import LLM, AsyncLLM, EngineConfig, SamplingParams
from tenonry.sampling_params import StructuredOutput
from tenonry_demo_model import model_path
from tenonry_scheduling import rounds

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("one_thread")]
SETTINGS = {
    "model": str(model_path()), "dtype": "float32", "device": "cpu", "max_num_seqs": 20, "max_model_len": 256,
    "log_stats": False,
}  # fmt: skip
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
# Starts what compiles grammars, which stays as long as its engine.
ANY_LETTER = {"max_tokens": 2, "structured_output": StructuredOutput(regex="[a-z]")}
PROMPT = "Once upon a time there was a little girl who"
GREEDY = {"temperature": 0.0, "max_tokens": 40}
DRAWN = {"temperature": 0.9, "seed": 5, "max_tokens": 40}


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    monkeypatch.setattr(rounds, "MAX_WAIT_S", 60.0)


@pytest.fixture(scope="module")
def plain():
    """Tokens and text of requests that run together, one token a step."""
    with LLM(**SETTINGS, max_round_tokens=1) as llm:
        answers(llm, [ANY_LETTER])
        yield lambda asked: answers(llm, asked)


@pytest.fixture(scope="module")
def llm():
    with LLM(**SETTINGS, max_round_tokens=8) as made:
        answers(made, [ANY_LETTER])
        yield made


def answers(llm, asked):
    outputs = llm.generate([PROMPT] * len(asked), [SamplingParams(**each) for each in asked])
    return [
        (each.token_ids, each.text, each.finish_reason, each.stop_reason)
        for each in (output.outputs[0] for output in outputs)
    ]


def middle(plain, sampling):
    """A token, and a piece of text, from the middle of a request's output."""
    token_ids, text, _, _ = plain([sampling])[0]
    return token_ids[17], text[40:46]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
class TestTokens:
    @pytest.mark.nightly_after(1)
    def test_alone_and_beside_others(self, plain, llm, sampling):
        asked = [{**sampling, "max_tokens": count} for count in (1, 2, 9, 33, 40)]
        assert answers(llm, asked[-1:]) == plain(asked[-1:])
        assert answers(llm, asked) == plain(asked)

    def test_penalties_biases_and_cuts(self, plain, llm, sampling):
        asked = [
            {**sampling, "presence_penalty": 0.7, "frequency_penalty": 0.4},
            {**sampling, "repetition_penalty": 1.4},
            {**sampling, "top_k": 20, "top_p": 0.8, "min_p": 0.01},
            {**sampling, "logit_bias": {31: 4.0, 40: -4.0}},
            {**sampling, "bad_words": ["girl", "was"]},
        ]
        assert answers(llm, asked) == plain(asked)

    def test_stop_ids_stop_strings_and_min_tokens(self, plain, llm, sampling):
        token_id, text = middle(plain, sampling)
        asked = [
            {**sampling, "stop_token_ids": [token_id]},
            {**sampling, "stop_token_ids": [token_id], "min_tokens": 25},
            {**sampling, "stop": [text]},
            {**sampling, "stop": [text], "include_stop_str_in_output": True},
            sampling,
        ]
        expected = plain(asked)
        assert answers(llm, asked) == expected
        assert [each[2] for each in expected[:1] + expected[2:4]] == ["stop"] * 3

    @pytest.mark.parametrize("count", [1, 17], ids=["one", "as many as a thread fills masks for"])
    @pytest.mark.nightly_after(2)
    def test_grammars(self, plain, llm, sampling, count):
        specs = [
            StructuredOutput(json=json.dumps(PERSON)),
            StructuredOutput(regex="[a-z]{3,30}(, [a-z]+){2}"),
            None,
        ]
        asked = [
            {**sampling, "seed": 5 + number, "structured_output": specs[number % 3]}
            for number in range(count)
        ]
        assert answers(llm, asked) == plain(asked)

    def test_beside_log_probabilities(self, plain, llm, sampling):
        asked = [{**sampling, "logprobs": 2, "max_tokens": 6}, sampling]
        assert answers(llm, asked) == plain(asked)


@pytest.mark.parametrize("spec", [None, StructuredOutput(regex="[a-z ]{100}")])
def test_rounds_take_place(llm, spec):
    """Or nothing above was tried: forty tokens in a few steps."""
    core = llm.engine_core
    before = core.num_passes
    answers(llm, [{**GREEDY, "structured_output": spec}])
    assert core.num_passes - before < 12


@pytest.mark.usefixtures("forked_children")
class TestServed:
    @pytest.mark.parametrize(
        "layout",
        [{}, pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.nightly)],
        ids=["one rank", "TP 2"],
    )
    def test_newcomers_and_aborts_in_the_middle(self, plain, layout):
        """Streams contain every token once, in order, whatever other requests do."""
        asked = [{**DRAWN, "max_tokens": count} for count in (40, 23, 31, 12)]
        expected = plain(asked)
        engine = AsyncLLM(EngineConfig(**SETTINGS, **layout, max_round_tokens=8))

        try:
            found = asyncio.run(one_by_one(engine, PROMPT, asked))
        finally:
            engine.shutdown()
        assert found == [each[:2] for each in expected]

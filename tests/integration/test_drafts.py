"""Drafts change no token: the demo model, real processes, compared with an engine that decodes one token a step.

Timing is not part of it: the time limit of a multi-token step is so long that it ends with its slots. `Parrot` drafts
the tokens of an earlier run, and errs on purpose: drafts of every length are right and wrong.
"""

from __future__ import annotations

import asyncio
import re
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streams import one_by_one

from tenonry import LLM, AsyncLLM, EngineConfig, SamplingParams, StructuredOutput
from tenonry.errors import ConfigError, PluginError
from tenonry_demo_model import model_path
from tenonry_drafters import controller
from tenonry_drafters.base import Drafter
from tenonry_scheduling import rounds
from tenonry_testkit.tiers import nightly_unless
from tenonry_worker_torch.drafting import rounds as drafted_rounds

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("one_thread")]
SETTINGS = {
    "model": str(model_path()), "dtype": "float32", "device": "cpu", "max_num_seqs": 8, "max_model_len": 256,
    "log_stats": False, "io_processor": {"name": "text", "options": {"grammar_seconds": 20}},
}  # fmt: skip
PROMPT = "the cat sat on the mat and the dog sat on the mat and the cat sat on the mat and"
GREEDY = {"temperature": 0.0, "max_tokens": 40}
DRAWN = {"temperature": 0.9, "seed": 2, "max_tokens": 40}
GRAMMARS = {
    "regex": StructuredOutput(regex="( the cat sat on the mat and| [a-z]{2,8}){4,7}"),
    "choice": StructuredOutput(choice=("the dog sat on the mat and", "the dog sat on the bed")),
    "schema": StructuredOutput(
        json='{"type": "array", "items": {"enum": ["cat", "cow"]}, "minItems": 5, "maxItems": 6}'
    ),
}


class Parrot(Drafter):
    """Drafts the tokens in `known`, by the first tokens of a row, with every fifth token wrong."""

    known: ClassVar[list[list[int]]] = []
    asked: ClassVar[int] = 0
    verified: ClassVar[list[tuple[int, int]]] = []
    right: ClassVar[int] = 0

    def propose(self, rows, histories, most):
        type(self).asked += len(rows)
        return [
            self._next(history.tolist(), count)
            for history, count in zip(histories, most, strict=True)
        ]

    def _next(self, history, count):
        for text in self.known:
            if text[: len(history)] == history:
                found = np.array(text[len(history) : len(history) + count], np.int32)
                places = np.arange(len(history), len(history) + len(found))
                return np.where(places % 5 == 0, (found + 1) % 100, found).astype(np.int32)
        return np.array([], np.int32)

    def accept(self, row, num_drafts, num_accepted):
        self.verified.append((num_drafts, num_accepted))
        type(self).right += num_accepted


PARROT = f"{__name__}:Parrot"
MODEL = {"name": "model", "options": {"model": "demo"}}


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    monkeypatch.setattr(rounds, "MAX_WAIT_S", 60.0)
    monkeypatch.setattr(drafted_rounds, "MAX_WAIT_S", 60.0)
    monkeypatch.setattr(controller, "FIRST_CREDIT", 1e9)
    Parrot.known.clear()
    Parrot.right = 0


@pytest.fixture(scope="module")
def plain():
    """Tokens and text of requests that run together, one token a step."""
    with LLM(**SETTINGS, max_round_tokens=1) as llm:
        begin_with_grammars(llm)
        yield lambda asked, prompts=None: answers(llm, asked, prompts)


@pytest.fixture(scope="module")
def ngram():
    with LLM(**SETTINGS, drafter="ngram") as made:
        begin_with_grammars(made)
        yield made


@pytest.fixture(scope="module")
def parrot():
    with LLM(**SETTINGS, drafter=PARROT) as made:
        begin_with_grammars(made)
        yield made


def begin_with_grammars(llm):
    """Their process and thread stay for as long as the engine."""
    answers(llm, [{**GREEDY, "structured_output": StructuredOutput(choice=("yes",))}])


def outputs_of(llm, asked, prompts=None):
    params = [SamplingParams(**each) for each in asked]
    return llm.generate(prompts or [PROMPT] * len(asked), params)


def answers(llm, asked, prompts=None):
    return [
        (each.token_ids, each.text, each.finish_reason, each.stop_reason, shown(each.logprobs))
        for each in (output.outputs[0] for output in outputs_of(llm, asked, prompts))
    ]


def shown(logprobs):
    """Reported log-probabilities of each token."""
    if logprobs is None:
        return None
    return [
        {token_id: (entry.rank, Near(entry.logprob)) for token_id, entry in line.items()}
        for line in logprobs
    ]


class Near(float):
    """Tolerant equality: the order of sums differs if several tokens are computed together."""

    def __eq__(self, other):
        return abs(self - other) < 1e-4

    __hash__ = float.__hash__


def learnt(plain_llm, asked):
    """Add the oracle's answers to the parrot's texts."""
    found = outputs_of(plain_llm, asked)
    Parrot.known.extend(
        [*output.prompt_token_ids, *output.outputs[0].token_ids] for output in found
    )


class Both:
    """The same requests with drafts that repeat, and with ones that are mostly right."""

    def __init__(self, plain, ngram, parrot):
        self.plain = plain
        self.ngram = ngram
        self.parrot = parrot

    def __call__(self, asked):
        expected = self.plain(asked)
        assert answers(self.ngram, asked) == expected
        learnt(self.ngram, asked)
        before = Parrot.right
        assert answers(self.parrot, asked) == expected
        assert Parrot.right > before
        return expected


@pytest.fixture
def both(plain, ngram, parrot):
    return Both(plain, ngram, parrot)


@pytest.mark.parametrize(
    "sampling", nightly_unless(lambda each: each is DRAWN, [GREEDY, DRAWN]), ids=["greedy", "drawn"]
)
class TestTokens:
    @pytest.mark.nightly_after(1)
    @pytest.mark.parametrize("count", [9, 33])
    def test_alone(self, both, sampling, count):
        both([{**sampling, "max_tokens": count}])

    def test_beside_others(self, both, sampling):
        both([{**sampling, "max_tokens": count} for count in (40, 23, 31, 12)])

    def test_more_rows_than_are_drafted_for(self, plain, ngram, sampling):
        asked = [{**sampling, "max_tokens": 20 + count} for count in range(7)]
        assert answers(ngram, asked) == plain(asked)

    @pytest.mark.nightly
    def test_penalties_biases_and_cuts(self, both, sampling):
        for each in (
            {"presence_penalty": 0.7, "frequency_penalty": 0.4},
            {"repetition_penalty": 1.4},
            {"top_k": 20, "top_p": 0.8, "min_p": 0.01},
            {"logit_bias": {31: 4.0, 40: -4.0}},
            {"bad_words": ["girl", "was"]},
        ):
            both([{**sampling, **each}])

    def test_log_probabilities(self, both, sampling):
        """Of each token, however many a step decodes; rows request different numbers of them, or none."""
        found = both([{**sampling, "logprobs": count} for count in (0, 5)] + [sampling])
        assert [len(each[4] or ()) for each in found] == [len(found[0][0])] * 2 + [0]
        both([{**sampling, "logprobs": 2, "presence_penalty": 0.5, "stop": [found[0][1][50:54]]}])

    @pytest.mark.nightly
    @pytest.mark.parametrize("spec", GRAMMARS.values(), ids=GRAMMARS.keys())
    def test_a_grammar(self, both, sampling, spec):
        """Alone, and together with rows without one; drafts beyond the grammar are truncated."""
        both([{**sampling, "structured_output": spec}])
        both([{**sampling, "structured_output": spec, "logprobs": 1}, sampling])

    def test_a_grammar_that_holds_later(self, both, plain, sampling):
        """The output is free until the tokens after which the grammar applies."""
        sampling = {**sampling, "logit_bias": {0: -100.0, 2: -100.0}}  # no end before that
        token_ids, *_ = plain([sampling])[0]
        spec = StructuredOutput(regex="( cat| dog){4}", start_after=tuple(token_ids[2:4]))
        (found,) = both([{**sampling, "structured_output": spec}])
        assert found[0][:4] == token_ids[:4]
        assert found[2] == "stop"

    def test_stop_ids_stop_strings_and_min_tokens(self, both, plain, sampling):
        token_ids, text, *_ = plain([sampling])[0]
        half = len(token_ids) // 2
        found = both(
            [
                {**sampling, "stop_token_ids": [token_ids[half]]},
                {**sampling, "stop_token_ids": [token_ids[half]], "min_tokens": half + 4},
                {**sampling, "stop": [text[len(text) // 2 :][:6]]},
                sampling,
            ]
        )
        assert [each[2] for each in found[:1] + found[2:3]] == ["stop"] * 2


def test_steps_are_saved(ngram, plain, parrot):
    """Or nothing above was tried: the tokens of several passes in one."""
    learnt(ngram, [GREEDY])
    Parrot.asked = 0
    answers(parrot, [GREEDY])
    assert Parrot.right > 15
    assert Parrot.asked < 20


def test_drafts_are_counted(parrot, ngram):
    learnt(ngram, [GREEDY, DRAWN])
    parrot.engine_core.scheduler.make_stats()
    Parrot.verified.clear()
    answers(parrot, [GREEDY, DRAWN])
    stats = parrot.engine_core.scheduler.make_stats()
    assert stats.num_drafts == len(Parrot.verified) > 1
    assert stats.num_draft_tokens == sum(drafts for drafts, _ in Parrot.verified)
    assert stats.num_accepted_tokens == sum(accepted for _, accepted in Parrot.verified)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    words=st.lists(
        st.sampled_from(["the", "cat", "sat", "on", "a", "mat", ".", "and"]),
        min_size=4,
        max_size=40,
    ),
    temperature=st.sampled_from([0.0, 0.3, 1.2]),
    seed=st.integers(0, 1 << 40),
    penalty=st.sampled_from([0.0, 0.8]),
    count=st.integers(1, 30),
)
def test_any_prompt(plain, ngram, words, temperature, seed, penalty, count):
    asked = {
        "temperature": temperature, "seed": seed, "frequency_penalty": penalty, "max_tokens": count
    }  # fmt: skip
    prompt = " ".join(words)
    with_drafts = answers(ngram, [asked], [prompt])
    assert with_drafts == plain([asked], [prompt])


def scraped(engine):
    """The counters of an engine as its metrics show them, under the names of vLLM's dashboards."""
    text = engine.stat_loggers["prometheus"].render()[0].decode()
    found = re.findall(r"^vllm:(\w+)_total\{[^}]*\} (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


class TestServed:
    @pytest.mark.parametrize("layout", [{}, {"tensor_parallel_size": 2}], ids=["one rank", "TP 2"])
    @pytest.mark.parametrize("drafter", ["ngram", MODEL], ids=["ngram", "model"])
    @pytest.mark.nightly
    def test_newcomers_and_aborts_in_the_middle(self, plain, drafter, layout):
        """Streams contain every token once, in order, whatever other requests do."""
        asked = [{**DRAWN, "max_tokens": count} for count in (40, 23, 31, 12)]
        asked[1]["structured_output"] = GRAMMARS["regex"]
        asked[2]["logprobs"] = 1
        expected = plain(asked)
        counting = {**SETTINGS, "log_stats": True, "stat_loggers": ("prometheus",)}
        engine = AsyncLLM(EngineConfig(**counting, **layout, drafter=drafter))

        async def run():
            found = await one_by_one(engine, PROMPT, asked)
            for _ in range(200):
                if scraped(engine)["spec_decode_num_accepted_tokens"]:
                    break
                await asyncio.sleep(0.05)  # numbers follow a little later
            return found

        try:
            found = asyncio.run(run())
            counts = scraped(engine)
        finally:
            engine.shutdown()
        assert found == [each[:2] for each in expected]
        assert 0 < counts["spec_decode_num_drafts"] <= counts["spec_decode_num_draft_tokens"]
        assert counts["spec_decode_num_accepted_tokens"] < counts["generation_tokens"]

    def test_a_cache_with_hardly_any_room(self, plain):
        """Rows are preempted, and blocks for drafts are not always there."""
        asked = [{**DRAWN, "seed": seed, "max_tokens": 60} for seed in range(4)]
        expected = plain(asked)
        with LLM(**SETTINGS, drafter="ngram", num_gpu_blocks_override=16, block_size=16) as llm:
            assert answers(llm, asked) == expected


class TestRefused:
    @pytest.mark.nightly_after(2)
    @pytest.mark.parametrize(
        ("settings_", "error", "text"),
        [
            ({"max_round_tokens": 1}, ConfigError, "use 2 or more"),
            ({"worker": "transformers"}, ConfigError, "drafter=ngram"),
            ({"drafter": "ngrams"}, PluginError, "ngram"),
            (
                {"drafter": {"name": "ngram", "options": {"min_match": 5}}},
                PluginError,
                "max_match=4 is less than min_match=5",
            ),
            (
                {"drafter": {"name": "ngram", "options": {"min_match": 0}}},
                PluginError,
                "greater than or equal to 1",
            ),
        ],
        ids=["no rounds", "worker", "name", "order", "bound"],
    )
    def test_by_name(self, settings_, error, text):
        with pytest.raises(error, match=text):
            LLM(**{**SETTINGS, "drafter": "ngram", **settings_})

"""Greedy tokens of very different families are those of `generate`, in a real engine."""

from __future__ import annotations

import gc

import generate_families as families
import generate_tools as tools
import pytest
import torch

from tenonry import SamplingParams
from tenonry.config import PluginChoice
from tenonry_testkit.tiers import nightly_unless
from tenonry_worker_transformers import model_runner
from tenonry_worker_transformers.pieces import Batcher, Batching
from tenonry_worker_transformers.self_check import agree
from tenonry_worker_transformers.trees import NotBatchable

pytestmark = pytest.mark.slow  # whole models

# Prompts longer than a step's budget, and blocks for about two requests at a time.
# One of each kind of cache: the others of a kind are served at night.
USUAL = {
    "falcon",
    "gpt_neo",
    "gemma3",
    "mamba",
    "rwkv",
    "jamba",
    "qwen3_next",
    "bert",
    "xlnet",
    "bart",
    "t5",
}
CROWDED = {
    "max_num_batched_tokens": 8,
    "max_model_len": 32,
    "block_size": 4,
    "num_gpu_blocks_override": 10,
}


@pytest.mark.parametrize(
    "family", nightly_unless(lambda family: family in USUAL, families.FAMILIES)
)
@pytest.mark.integration
@pytest.mark.nightly_after(4)
def test_tokens_are_those_of_generate_alone(family):
    """Mixed lengths, chunks, more requests than rows, preemption, and a second batch in the same engine."""
    with tools.engine(family, **CROWDED) as llm:
        outputs = tools.served(llm, tools.prompts(), logprobs=0)
        assert tools.tokens(outputs) == tools.generated(family)
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
        for output, values in zip(outputs, tools.logprobs(family), strict=True):
            assert _logprobs(output) == pytest.approx(_chosen(output, values), abs=1e-3)
        again = tools.served(llm, tools.prompts()[::-1])
        assert tools.tokens(again) == tools.generated(family)[::-1]


def _logprobs(output):
    (completion,) = output.outputs
    pairs = zip(completion.logprobs, completion.token_ids, strict=True)
    return [entry[token].logprob for entry, token in pairs]


def _chosen(output, values):
    """log_softmax of the model's own logits at the chosen tokens."""
    ids = torch.tensor(output.outputs[0].token_ids)
    return values.gather(1, ids[:, None])[:, 0].tolist()


@pytest.mark.parametrize(
    ("family", "chunks", "batching"),
    [
        ("gemma3", True, "MIXED"),
        ("jamba", False, "MIXED"),
        ("bart", True, "EQUAL"),
        ("rwkv", True, "NONE"),
    ],
)
@pytest.mark.integration
def test_what_a_cache_allows_is_found_out_at_the_start(family, chunks, batching):
    with tools.engine(family) as llm:
        checked = tools.worker_of(llm).model.checked
        assert (checked.chunks, checked.batching.name) == (chunks, batching)


@pytest.mark.parametrize("family", ["gemma3", "qwen3_next", "t5"])
def test_rows_that_decode_are_one_batch(family):
    """Rows of mixed length come and go; as many pieces as calls, and far fewer than tokens."""
    with tools.engine(family, max_num_seqs=6) as llm:
        calls = tools.decoding_calls(llm)
        outputs = tools.served(llm, tools.prompts())
        assert tools.tokens(outputs) == tools.generated(family)
        assert len(calls) <= 2 * tools.MAX_TOKENS
        assert max(rows for rows, _ in calls) == 6


@pytest.mark.parametrize("family", ["falcon", "t5", "jamba"])
@pytest.mark.slow
def test_a_request_comes_back_one_token_at_a_time_while_others_decode(family):
    """Its outputs are computed again; a chunk of one of them is no decoding: nothing is sampled."""
    slowly = PluginChoice(name="batching", options={"long_prefill_token_threshold": 1})
    crowded = CROWDED | {"num_gpu_blocks_override": 7, "max_model_len": 24, "scheduler": slowly}
    lengths = (1, 1, 1)
    with tools.engine(family, **crowded) as llm:
        outputs = tools.served_each(llm, tools.prompts(lengths), (10, 14, 10))
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
        wanted = tools.generated(family, lengths=lengths, max_tokens=14)
        assert tools.tokens(outputs) == [
            tokens[:count] for tokens, count in zip(wanted, (10, 14, 10), strict=True)
        ]


@pytest.mark.parametrize(
    ("family", "lengths", "counts"),
    [
        ("gpt_neo", (40, 26), (3, 38)),
        ("gemma3", (40, 26), (3, 38)),
        ("gemma-prefix", (40, 26), (3, 38)),
        ("t5", (3, 3, 2), (8, 20, 62)),  # the third comes when the first ends
    ],
)
@pytest.mark.slow
def test_padding_takes_no_row_beyond_the_longest_sequence(family, lengths, counts):
    """The longer row ends, and the padded last row continues to the last position."""
    with tools.engine(family, max_num_seqs=2) as llm:
        calls = tools.decoding_calls(llm)
        outputs = tools.served_each(llm, tools.prompts(lengths), counts)
        assert max(rows for rows, _ in calls) == 2
        assert max(length for _, length in calls) < tools.MAX_MODEL_LEN
        wanted = tools.generated(family, lengths=lengths, max_tokens=max(counts))
        assert tools.tokens(outputs) == [
            tokens[:count] for tokens, count in zip(wanted, counts, strict=True)
        ]


@pytest.mark.parametrize("family", ["gpt_neo", "falcon", "gemma3"])
def test_the_padding_of_a_long_row_goes_when_it_ends(family):
    """The short row was padded to 40 positions, which no block accounts for; it continues without them."""
    lengths = (40, 3)
    counts = (3, 12)
    with tools.engine(family, max_num_seqs=2) as llm:
        calls = tools.decoding_calls(llm)
        outputs = tools.served_each(llm, tools.prompts(lengths), counts)
        assert max(rows for rows, _ in calls) == 2
        assert max(length for _, length in calls) >= 40
        assert max(length for _, length in calls[-5:]) < 20
        wanted = tools.generated(family, lengths=lengths, max_tokens=max(counts))
        assert tools.tokens(outputs) == [
            tokens[:count] for tokens, count in zip(wanted, counts, strict=True)
        ]


def test_rows_that_cannot_be_joined_after_all_are_computed_apart(monkeypatch):
    """Several groups of rows in one step, and none of them can be one batch."""

    def refused(self, pieces):
        raise NotBatchable("no")

    lengths = (3, 3, 9, 9)
    with tools.engine("xlstm") as llm:
        assert tools.worker_of(llm).model.checked.batching is Batching.EQUAL
        monkeypatch.setattr(Batcher, "joined", refused)
        outputs = tools.served(llm, tools.prompts(lengths))
        assert tools.tokens(outputs) == tools.generated("xlstm", lengths=lengths)


def test_of_two_positions_both_must_agree():
    right = torch.arange(8.0)
    wrong = right.flip(0)
    assert agree([right, right], [right, right])
    assert not agree([right, wrong], [right, right])
    assert not agree([wrong, right], [right, right])


@pytest.mark.parametrize("piece", [1 << 26, 5 * families.VOCAB])
def test_prompts_have_log_probabilities_too(monkeypatch, piece):
    """Also if the logits of so many positions are computed in parts."""
    monkeypatch.setattr(model_runner, "PROMPT_LOGITS", piece)
    model = families.stored("falcon")
    for settings in ({}, {"max_num_batched_tokens": 8}):
        with tools.engine("falcon", **settings) as llm:
            outputs = tools.served(llm, tools.prompts(), prompt_logprobs=1)
        for prompt, output in zip(tools.prompts(), outputs, strict=True):
            if len(prompt) == 1:
                assert not output.prompt_logprobs
                continue
            ids = torch.tensor([prompt])
            with torch.inference_mode():
                values = model(ids).logits[0].log_softmax(-1)
            found = [
                entry[token].logprob
                for entry, token in zip(output.prompt_logprobs[1:], prompt[1:], strict=True)
            ]
            wanted = values[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
            assert found == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 8}])
@pytest.mark.parametrize("family", ["t5", "xlnet"])
@pytest.mark.slow
def test_a_model_without_log_probabilities_of_its_prompt_says_so(family, settings):
    """Others that share a batch with such a request are answered."""
    wanted = [tools.GREEDY | {"prompt_logprobs": 1}, tools.GREEDY, tools.GREEDY]
    lengths = (9, 9, 5)
    with tools.engine(family, **settings) as llm:
        refused, *others = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in tools.prompts(lengths)],
            [SamplingParams(**each) for each in wanted],
        )
    assert "prompt_logprobs: this model gives no log-probabilities" in refused.error
    assert refused.outputs[0].finish_reason == "error"
    assert tools.tokens(others) == tools.generated(family, lengths=lengths)[1:]


def test_seeded_samples_do_not_depend_on_neighbours():
    sampling = {"temperature": 1.0, "seed": 11, "n": 2}
    with tools.engine("bloom") as llm:
        together = tools.tokens(tools.served(llm, tools.prompts(), **sampling))
        alone = [
            tools.tokens(tools.served(llm, [prompt], **sampling)) for prompt in tools.prompts()
        ]
    assert together == [tokens for pair in alone for tokens in pair]
    assert together[0] != together[1]


def test_nothing_is_kept_of_requests_that_ended():
    with tools.engine("gemma3") as llm:
        calls = tools.worker_of(llm).model.calls
        kept = tools.kept_pieces(calls)
        tools.served(llm, tools.prompts())
        tools.served(llm, tools.prompts()[:1])  # the step after the last one of a row takes it out
        gc.collect()
        assert kept
        assert sum(piece() is not None for piece in kept) <= 1

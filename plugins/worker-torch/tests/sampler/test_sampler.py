"""The vectorised sampler against a plain one that looks at a single row at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, RowFailure
from tenonry_worker_torch.sampler.processors import LogitsProcessor, ProcessorContext, SampleStep
from tenonry_worker_torch.sampler.randomness import uniforms
from tenonry_worker_torch.sampler.sampler import Sampler

VOCAB, ROWS, LENGTH = 40, 8, 64


class Bench:
    """A sampler with rows to fill, and the plain reference beside it."""

    def __init__(self, vocab=VOCAB, extra=()):
        self.history = np.zeros((ROWS, LENGTH), np.int32)
        context = ProcessorContext(ROWS, vocab, torch.device("cpu"), torch.from_numpy(self.history))
        self.sampler, self.rows = Sampler(context, extra=extra), {}

    def enter(self, row, sampling, prompt=(1, 2, 3), output=(), stop=(), bad=()):
        tokens = np.array([*prompt, *output], np.int32)
        self.history[row, : len(tokens)] = tokens
        self.rows[row] = (sampling, list(prompt), list(output), stop, bad)
        self.sampler.enter(
            NewRow(
                row=row,
                handle=row + 1,
                token_ids=tokens,
                num_computed=0,
                num_output=len(output),
                block_ids=(np.empty(0, np.int32),),
                sampling=sampling,
                stop_token_ids=tuple(stop),
                bad_words=tuple(bad),
            )
        )

    def step(self, rows):
        rows = np.array(rows, np.int32)
        output = np.array([len(self.rows[int(row)][2]) for row in rows], np.int32)
        prompt = np.array([len(self.rows[int(row)][1]) for row in rows], np.int32)
        return SampleStep(rows, output, prompt + output)

    def sample(self, logits, rows):
        return self.sampler.sample(logits.clone(), self.step(rows))

    def accept(self, rows, sampled):
        for row, token in zip(rows, sampled.token_ids.tolist(), strict=True):
            _, prompt, output, _, _ = self.rows[row]
            self.history[row, len(prompt) + len(output)] = token
            output.append(token)


def processed(logits, sampling, prompt, output, stop, bad):
    """The documented order, one row, plain Python."""
    values = [float(value) for value in logits]
    if sampling.allowed_token_ids is not None:
        values = [
            value if i in sampling.allowed_token_ids else -math.inf
            for i, value in enumerate(values)
        ]
    for word in bad:
        begin = word[:-1]
        if len(begin) <= len(output) and (
            not begin or tuple(output[-len(begin) :]) == tuple(begin)
        ):
            values[word[-1]] = -math.inf
    if len(output) < sampling.min_tokens:
        for token in stop:
            values[token] = -math.inf
    for token, bias in (sampling.logit_bias or {}).items():
        values[token] += bias
    for token in range(len(values)):
        count = output.count(token)
        if (count or token in prompt) and sampling.repetition_penalty != 1.0:
            values[token] *= (
                1 / sampling.repetition_penalty
                if values[token] > 0
                else sampling.repetition_penalty
            )
        values[token] -= sampling.frequency_penalty * count + sampling.presence_penalty * (
            count > 0
        )
    return values


def weights(values, sampling):
    """Unnormalised probabilities after temperature, min_p, top_k and top_p, one row, plain Python."""
    scaled = [value / sampling.temperature for value in values]
    top = max(scaled)
    raw = [math.exp(value - top) for value in scaled]
    raw = [weight if weight >= sampling.min_p else 0.0 for weight in raw]
    if 0 < sampling.top_k < len(raw):
        limit = sorted(raw, reverse=True)[sampling.top_k - 1]
        raw = [weight if weight >= limit else 0.0 for weight in raw]
    total, mass, limit = sum(raw), 0.0, 0.0
    for weight in sorted(raw, reverse=True):
        if mass >= sampling.top_p * total:
            break
        mass, limit = mass + weight, weight
    return [weight if weight >= limit else 0.0 for weight in raw] if sampling.top_p < 1 else raw


SAMPLING = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, -1, 1, 3, 17, 400]),
    top_p=st.sampled_from([1.0, 0.9, 0.4, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    seed=st.integers(-(2**63), 2**63 - 1),
    presence_penalty=st.sampled_from([0.0, 0.7, -1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.6]),
    min_tokens=st.sampled_from([0, 2, 5]),
    logit_bias=st.none() | st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-5, 5), max_size=3),
    allowed_token_ids=st.none()
    | st.lists(st.integers(0, VOCAB - 1), min_size=12, max_size=20, unique=True),
)
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=6)
ROW = st.tuples(
    SAMPLING,
    TOKENS.filter(bool),
    TOKENS,
    st.lists(st.tuples(*[st.integers(0, 39)] * 2), max_size=3),
)


@settings(deadline=None, max_examples=150)
@given(rows=st.lists(ROW, min_size=1, max_size=ROWS), seed=st.integers(0, 10_000))
def test_every_row_samples_as_if_it_were_alone(rows, seed):
    """Rows with all kinds of wishes in one batch: each gets the token of the plain reference, or its nearest neighbour
    in the distribution when the random number falls on a border."""
    bench = Bench()
    for row, (sampling, prompt, output, bad) in enumerate(rows):
        bench.enter(row, sampling, prompt, output, stop=(5, 6), bad=bad)
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    sampled = bench.sample(logits, range(len(rows)))
    for row, (sampling, prompt, output, bad) in enumerate(rows):
        values = processed(logits[row], sampling, prompt, output, (5, 6), bad)
        token = int(sampled.token_ids[row])
        if sampling.temperature == 0:
            assert values[token] == pytest.approx(max(values), abs=1e-4)
            continue
        wanted = weights(values, sampling)
        assert wanted[token] > 0
        number = uniforms(np.array([sampling.seed % 2**64], np.uint64), np.array([len(output)]))[
            0
        ] * sum(wanted)
        below = sum(wanted[:token])
        assert below - 1e-4 * sum(wanted) <= number <= below + wanted[token] + 1e-4 * sum(wanted)


def test_greedy_rows_take_the_first_maximum_in_every_dtype():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        bench = Bench()
        logits = (torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(1)) * 2).to(
            dtype
        )
        logits[0] = -1.0 - torch.arange(VOCAB).to(dtype)  # all negative
        logits[1, 3:6] = 9.0  # a tie
        logits[2] = -0.0
        logits[3, 7] = float("inf")
        logits[4] = float("-inf")
        logits[4, 11] = -100.0
        for row in range(ROWS):
            bench.enter(row, SamplingParams(temperature=0.0))
        sampled = bench.sample(logits, range(ROWS))
        assert sampled.token_ids.tolist() == logits.float().numpy().argmax(-1).tolist()
        assert not sampled.failure.any()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pattern", [0x7FC00000, 0xFFC00000])
def test_a_row_with_nan_fails_alone(temperature, dtype, pattern):
    """Both signs of NaN: the one that x86 makes is negative."""
    nan = torch.from_numpy(np.array([pattern], np.uint32).view(np.float32))[0].to(dtype)
    bench = Bench()
    for row in range(3):
        bench.enter(row, SamplingParams(temperature=temperature, seed=row))
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0)).to(dtype)
    clean = bench.sample(logits, [0, 1, 2]).token_ids.tolist()
    logits[1, 4] = nan
    sampled = bench.sample(logits, [0, 1, 2])
    assert sampled.failure.tolist() == [0, RowFailure.NUMERICAL, 0]
    assert [sampled.token_ids[0], sampled.token_ids[2]] == [clean[0], clean[2]]


def test_a_row_with_nothing_left_to_sample_fails_alone():
    bench = Bench()
    bench.enter(0, SamplingParams(temperature=0.0, allowed_token_ids=[4]), bad=[(4,)])
    bench.enter(1, SamplingParams(temperature=1.0, seed=1))
    sampled = bench.sample(torch.zeros(2, VOCAB), [0, 1])
    assert sampled.failure.tolist() == [RowFailure.SAMPLING, 0]


def test_tokens_do_not_depend_on_who_else_is_in_the_batch():
    """The same request alone, in another row, and among others."""
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(4))
    wishes = [
        SamplingParams(temperature=0.5 + row / 4, top_k=row * 3, top_p=1 - row / 10, seed=row * 7)
        for row in range(6)
    ]
    together = Bench()
    for row, wish in enumerate(wishes):
        together.enter(row, wish, output=range(row))
    tokens = together.sample(logits, range(6)).token_ids.tolist()
    for row, wish in enumerate(wishes):
        alone = Bench()
        alone.enter(5 - row, wish, output=range(row))
        assert alone.sample(logits[row : row + 1], [5 - row]).token_ids.tolist() == [tokens[row]]
    order = [3, 0, 5, 1]
    assert together.sample(logits[order], order).token_ids.tolist() == [
        tokens[row] for row in order
    ]


@pytest.mark.parametrize("rows_per_tile", [1, 2, 3, 100])
def test_tiles_change_nothing(rows_per_tile, monkeypatch):
    """Tokens, failures and logprobs of a mixed batch, however many rows are worked on at once."""
    logits = torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(4))
    logits[6, 3] = float("nan")
    bench = Bench()
    for row in range(ROWS):
        random = row % 3 > 0
        bench.enter(
            row,
            SamplingParams(
                temperature=0.7 * random, seed=row, top_p=0.8, logprobs=row if row % 2 else None,
                presence_penalty=0.5 * (row == 5), frequency_penalty=0.2 * (row == 4),
            ),
            output=range(row),
        )  # fmt: skip
    whole = bench.sample(logits, range(ROWS))
    monkeypatch.setattr("tenonry_worker_torch.sampler.sampler.TILE_ELEMENTS", rows_per_tile * VOCAB)
    fresh = Bench()
    for row, (sampling, prompt, _, stop, bad) in bench.rows.items():
        fresh.enter(row, sampling, prompt, range(row), stop, bad)
    tiled = fresh.sample(logits, range(ROWS))
    assert tiled.token_ids.tolist() == whole.token_ids.tolist()
    assert tiled.failure.tolist() == whole.failure.tolist() == [0] * 6 + [RowFailure.NUMERICAL, 0]
    assert tiled.logprob_lines.tolist() == whole.logprob_lines.tolist() == [1, 3, 5, 7]
    for line, row in enumerate(tiled.logprob_lines):
        for got, wanted in zip(tiled.logprobs.numpy(), whole.logprobs.numpy(), strict=True):
            np.testing.assert_array_equal(
                np.ravel(got[line])[: row + 1], np.ravel(wanted[line])[: row + 1]
            )


def test_the_distribution_is_the_wanted_one():
    """Ten thousand positions of one request against its probabilities: chi-squared with 19 degrees of freedom."""
    logits = torch.linspace(-1, 2, 20)
    wish = SamplingParams(temperature=0.9, seed=99)
    bench = Bench(vocab=20)
    bench.enter(0, wish)
    counts = np.zeros(20)
    draws = 10_000
    for begin in range(0, draws, 500):
        positions = np.arange(begin, begin + 500, dtype=np.int32)
        step = SampleStep(np.zeros(500, np.int32), positions, positions + 3)
        counts += np.bincount(
            bench.sampler.sample(logits.repeat(500, 1), step).token_ids.numpy(), minlength=20
        )
    expected = torch.softmax(logits / 0.9, -1).numpy() * draws
    assert (
        (counts - expected) ** 2 / expected
    ).sum() < 43.8  # 0.1 % of fair samplers would fail; this one is fixed


def test_every_logit_is_changed_as_the_plain_sampler_changes_it():
    """Above and below zero, seen in the prompt, once and twice in the output, and by all rules together."""
    wishes = [
        {"presence_penalty": 0.7}, {"frequency_penalty": -0.4},
        {"repetition_penalty": 1.3}, {"repetition_penalty": 0.6},
        {"presence_penalty": -1.5, "frequency_penalty": 0.4, "repetition_penalty": 1.3},
        {"logit_bias": {2: 3.0, 9: -3.0}, "presence_penalty": 0.7}, {"min_tokens": 9, "frequency_penalty": 0.4},
        {"allowed_token_ids": [2, 3, 5, 7, 11], "repetition_penalty": 1.3},
    ]  # fmt: skip
    bench = Bench()
    logits = torch.linspace(-3, 3, VOCAB).flip(0).roll(7).repeat(len(wishes), 1)
    for row, wish in enumerate(wishes):
        bench.enter(
            row,
            SamplingParams(**wish),
            prompt=(2, 30, 11),
            output=(3, 30, 3, 25),
            stop=(5, 6),
            bad=[(25, 8)],
        )
    changed = bench.sampler._processed(logits, bench.step(range(len(wishes))), is_shared=True)
    for row in range(len(wishes)):
        np.testing.assert_allclose(
            changed[row], processed(logits[row], *bench.rows[row]), atol=1e-5
        )


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_row_without_a_largest_number_fails_alone(value):
    bench = Bench()
    for row in range(2):
        bench.enter(row, SamplingParams(temperature=1.0, seed=1))
    logits = torch.zeros(2, VOCAB)
    logits[1, 4] = value
    assert bench.sample(logits, [0, 1]).failure.tolist() == [0, RowFailure.NUMERICAL]


def test_penalties_count_what_was_sampled_since_the_row_entered():
    bench = Bench()
    bench.enter(
        0,
        SamplingParams(temperature=0.0, frequency_penalty=1.0, repetition_penalty=1.1),
        output=(7,),
    )
    logits = torch.zeros(1, VOCAB)
    logits[0, 8:12] = torch.tensor([2.0, 1.9, 1.8, 1.7])
    chosen = []
    for _ in range(6):
        sampled = bench.sample(logits, [0])
        sampling, prompt, output, stop, bad = bench.rows[0]
        values = processed(logits[0], sampling, prompt, output, stop, bad)
        assert values[int(sampled.token_ids[0])] == pytest.approx(max(values), abs=1e-5)
        bench.accept([0], sampled)
        chosen.append(int(sampled.token_ids[0]))
    assert len(set(chosen)) > 2


def test_a_row_is_forgotten_when_it_leaves():
    bench = Bench()
    bench.enter(
        0,
        SamplingParams(
            temperature=0.0, allowed_token_ids=[3], logit_bias={3: 1.0}, presence_penalty=1.0
        ),
    )
    bench.sampler.leave(0)
    bench.enter(0, SamplingParams(temperature=0.0))
    logits = torch.zeros(1, VOCAB)
    logits[0, 9] = 1.0
    assert bench.sampler.columns.is_plain[0]
    assert bench.sample(logits, [0]).token_ids.tolist() == [9]


def test_table_lines_are_used_again():
    bench = Bench()
    for _ in range(50):
        bench.enter(1, SamplingParams(presence_penalty=1.0, allowed_token_ids=[1, 2]))
        bench.sampler.leave(1)
    assert {type(p).__name__: p._tables.num_lines for p in bench.sampler.processors if hasattr(p, "_tables")} == {
        "AllowedTokens": 1, "Penalties": 1,
    }  # fmt: skip


def test_bad_words_look_at_output_tokens_only_and_share_last_tokens():
    bench = Bench()
    bench.enter(0, SamplingParams(temperature=0.0), prompt=(5, 6), output=(), bad=[(6, 9), (5, 9)])
    bench.enter(
        1,
        SamplingParams(temperature=0.0),
        prompt=(1,),
        output=(5, 6),
        bad=[(6, 9), (4, 9), (5, 6, 8)],
    )
    logits = torch.zeros(2, VOCAB)
    logits[:, 9], logits[:, 8], logits[:, 7] = 3.0, 2.0, 1.0
    assert bench.sample(logits, [0, 1]).token_ids.tolist() == [9, 7]


def test_stop_ids_wait_for_min_tokens():
    bench = Bench()
    bench.enter(0, SamplingParams(temperature=0.0, min_tokens=2), stop=(9,))
    logits = torch.zeros(1, VOCAB)
    logits[0, 9], logits[0, 8] = 2.0, 1.0
    tokens = []
    for _ in range(3):
        sampled = bench.sample(logits, [0])
        bench.accept([0], sampled)
        tokens += sampled.token_ids.tolist()
    assert tokens == [8, 8, 9]


def test_logprobs_are_those_of_the_raw_logits():
    bench = Bench()
    bench.enter(0, SamplingParams(temperature=0.0, logprobs=3, logit_bias={5: 50.0}))
    bench.enter(1, SamplingParams(temperature=0.0))
    bench.enter(2, SamplingParams(temperature=0.7, seed=1, logprobs=0))
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(8))
    sampled = bench.sample(logits, [0, 1, 2])
    wanted = torch.log_softmax(logits, -1)
    assert sampled.logprob_lines.tolist() == [0, 2]
    ids, values, rank = sampled.logprobs.numpy()
    assert ids.shape == (2, 4)
    assert ids[0, 0] == 5
    for line, row in enumerate((0, 2)):
        np.testing.assert_allclose(
            values[line], wanted[row, torch.from_numpy(ids[line]).long()], atol=1e-5
        )
        assert rank[line] == (wanted[row] > wanted[row, int(ids[line, 0])]).sum() + 1
        assert ids[line, 1:].tolist() == wanted[row].topk(3).indices.tolist()


def test_an_unseeded_request_is_told_apart_by_its_handle():
    bench = Bench()
    bench.enter(0, SamplingParams(temperature=1.0))
    bench.enter(1, SamplingParams(temperature=1.0))
    seeds = bench.sampler.columns.seed
    assert seeds[0] != seeds[1]


def test_temperatures_next_to_zero_are_greedy():
    bench = Bench()
    bench.enter(0, SamplingParams(temperature=1e-30, seed=3))
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(8))
    assert bench.sample(logits, [0]).token_ids.tolist() == [int(logits.argmax())]


class _OnlyEven(LogitsProcessor):
    name = "only_even"

    def enter(self, new):
        return True

    def apply(self, logits, step):
        logits[:, 1::2] = float("-inf")


def test_a_further_logits_processor_has_the_last_word():
    bench = Bench(extra=[_OnlyEven])
    bench.enter(0, SamplingParams(temperature=0.0))
    logits = torch.zeros(1, VOCAB)
    logits[0, 9], logits[0, 8] = 2.0, 1.0
    assert bench.sample(logits, [0]).token_ids.tolist() == [8]

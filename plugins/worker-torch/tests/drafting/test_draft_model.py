"""A draft model over K/V of its own against the model's own code, which computes each history from its beginning.

Histories change as those of an engine: they grow by one or many tokens, lose drafts at their end, continue differently,
and leave; rows are queried together, in any order.
"""

from __future__ import annotations

import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import worker_families
from worker_tools import loaded

from tenonry_drafters.controller import MAX_ROWS
from tenonry_drafters.draft_slots import DraftSlots
from tenonry_drafters.models import NO_TOKEN
from tenonry_testkit.tiers import nightly_unless
from tenonry_worker_torch.drafting import draft_model
from tenonry_worker_torch.drafting.draft_model import TorchDraftModel
from tenonry_worker_torch.step_kernels import find_kernels

MAX_LEN = 60
VOCAB_SIZE = 96
CPU = torch.device("cpu")


def make(family="llama", dtype=torch.float32, *, max_len=MAX_LEN, vocab_size=VOCAB_SIZE, **build):
    module = worker_families.build(family).to(dtype)
    model = loaded(module, **build)
    return TorchDraftModel(model, DraftSlots(MAX_ROWS, max_len, 8), vocab_size, nullcontext)


def plainly(family, history):
    """Logits [vocabulary] of the next token."""
    module = worker_families.build(family)
    with torch.inference_mode():
        return module(torch.tensor([history])).logits[0, -1]


class Histories:
    """Of rows that come and go, more of them than there are slots."""

    def __init__(self, model, seed, tolerance=0.0):
        self.model = model
        self.tolerance = tolerance  # of logits, whose best ones may be nearly equal
        self.draw = random.Random(seed)
        self.rows = {row: self._some(12) for row in range(7)}

    def _some(self, most):
        return [self.draw.randrange(3, VOCAB_SIZE) for _ in range(self.draw.randrange(1, most))]

    def change(self, row, guessed):
        """Possible changes of a row after a draft; `guessed` is correct half of the time."""
        tokens = self.rows[row]
        kind = self.draw.randrange(8)
        if kind < 4:
            tokens = [*tokens, guessed]
        elif kind == 4:
            tokens = tokens + self._some(14)
        elif kind == 5:
            tokens = tokens[: self.draw.randrange(1, len(tokens) + 1)] + self._some(3)
        elif kind == 6:
            tokens = tokens[: self.draw.randrange(1, len(tokens) + 1)]
        else:
            self.model.leave(row)
            tokens = self._some(20)
        self.rows[row] = tokens if len(tokens) <= MAX_LEN else self._some(30)

    def turn(self, family):
        rows = self.draw.sample(list(self.rows), self.draw.randrange(1, MAX_ROWS + 1))
        asked = [self.rows[row] for row in rows]
        found = self.model.next_tokens(rows, [np.array(tokens, np.int32) for tokens in asked])
        for row, tokens, token_id in zip(rows, asked, found.token_ids.tolist(), strict=True):
            logits = plainly(family, tokens)
            assert logits[token_id] >= logits.max() - self.tolerance
            self.change(row, token_id)


@pytest.mark.parametrize("seed", nightly_unless(lambda seed: seed == 0, range(3)))
@pytest.mark.parametrize("backend", ["cpu", "sdpa"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.slow
@pytest.mark.nightly_after(2)
def test_it_continues_histories_as_the_models_own_code_does(family, backend, seed):
    histories = Histories(make(family, backend=backend), seed)
    for _ in range(25):
        histories.turn(family)


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.slow
@pytest.mark.nightly_after(1)
def test_histories_in_small_chunks(monkeypatch, chunk):
    monkeypatch.setattr(draft_model, "CHUNK", chunk)
    histories = Histories(make(), 4)
    for _ in range(20):
        histories.turn("llama")


@pytest.mark.slow
def test_with_kernels_over_blocks():
    """In bfloat16, where few tokens of one row are computed as rows of their own."""
    kernels = find_kernels("cpu", CPU, {})
    model = make(dtype=torch.bfloat16, kernels=kernels)
    if not model.model.backend.splits_rows:
        pytest.skip("no kernel attends over blocks on this processor")
    histories = Histories(model, 1, tolerance=0.3)
    for _ in range(40):
        histories.turn("llama")


def test_only_what_is_new_is_computed():
    model = make()
    history = np.arange(3, 43, dtype=np.int32)
    model.next_tokens([5], [history[:30]])
    assert model.num_forward_tokens == 30
    model.next_tokens([5], [history[:31]])
    assert model.num_forward_tokens == 31
    model.next_tokens([5], [history[:36]])
    assert model.num_forward_tokens == 36
    other = history[:36].copy()
    other[33:] = 7
    model.next_tokens([5], [other])
    assert model.num_forward_tokens == 39


def test_the_row_that_was_asked_about_longest_ago_loses_its_seat():
    model = make()
    history = np.arange(3, 13, dtype=np.int32)
    for row in range(MAX_ROWS):
        model.next_tokens([row], [history])
    model.next_tokens([0], [history])
    model.next_tokens([9], [history])
    before = model.num_forward_tokens
    model.next_tokens([0, 2, 3, 9], [history] * 4)
    assert model.num_forward_tokens == before + 4
    model.next_tokens([1], [history])
    assert model.num_forward_tokens == before + 14


def test_more_rows_than_seats_at_once_are_a_mistake():
    model = make()
    with pytest.raises(ValueError, match=f"{MAX_ROWS} slots"):
        model.next_tokens(list(range(MAX_ROWS + 1)), [np.array([3], np.int32)] * (MAX_ROWS + 1))


def test_what_is_too_long_or_unknown_is_not_continued():
    model = make(max_len=20, vocab_size=VOCAB_SIZE + 8)
    fits = np.full(20, 5, np.int32)
    unknown = np.array([3, VOCAB_SIZE + 2, 4], np.int32)
    found = model.next_tokens([0, 1, 2], [fits, np.full(21, 5, np.int32), unknown])
    assert found.token_ids.tolist() == [
        int(plainly("llama", fits.tolist()).argmax()),
        NO_TOKEN,
        NO_TOKEN,
    ]
    assert found.probability[1:].tolist() == [0.0, 0.0]


def test_no_id_is_guessed_that_the_served_model_lacks():
    model = make(vocab_size=10)
    found = model.next_tokens([0], [np.array([3, 4], np.int32)])
    assert 0 <= found.token_ids[0] < 10


def test_probability_is_that_of_the_softmax():
    model = make()
    history = [5, 9, 30]
    found = model.next_tokens([0], [np.array(history, np.int32)])
    expected = plainly("llama", history).softmax(-1).max()
    assert found.probability[0] == pytest.approx(float(expected), rel=1e-4)

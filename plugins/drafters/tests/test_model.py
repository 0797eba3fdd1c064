"""The drafter `model`, over a model without weights whose next token is known."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import ConfigError, ModelError, PluginError
from tenonry.plugin.manager import resolve_point
from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow
from tenonry_drafters.base import DrafterContext
from tenonry_drafters.models import NO_TOKEN
from tenonry_drafters.points import DRAFTERS, build_drafter
from tenonry_testkit.fakes.draft_models import UNSURE, FakeDraftModels
from tenonry_testkit.fakes.model import fake_model

HISTORIES = [np.arange(first, first + 9, dtype=np.int32) for first in range(30)]


def build(models=None, **options):
    choice = PluginChoice(name="model", options={"model": "fake", **options})
    found, record = resolve_point(DRAFTERS, choice)
    context = DrafterContext(
        EngineConfig(model="fake", drafter=choice),
        fake_model(),
        vocab_size=50,
        max_num_seqs=4,
        max_model_len=64,
        max_drafts=15,
        models=models,
    )
    return build_drafter(found, record, context)


def models(max_len=64):
    return FakeDraftModels(50, max_len)


def continued(model, history, count, least):
    """Token after token, up to the first that is unlikely."""
    tokens = list(history)
    while len(tokens) < len(history) + count:
        token_id, probability = model.next_token(np.array(tokens, np.int32))
        if token_id == NO_TOKEN:
            break
        tokens.append(token_id)
        if probability < least:
            break
    return tokens[len(history) :]


@pytest.mark.parametrize("least", [0.0, 0.5])
@pytest.mark.parametrize("bound", [1, 4, 15])
def test_it_guesses_what_the_model_says_token_after_token(least, bound):
    opener = models()
    drafter = build(opener, min_probability=least, num_drafts=bound)
    (model,) = opener.opened
    lengths = set()
    for history in HISTORIES:
        (guess,) = drafter.propose([0], [history], [7])
        assert guess.tolist() == continued(model, history, min(bound, 7), least)
        lengths.add(len(guess))
    if bound > 1:
        assert lengths == ({bound, 7} - {max(bound, 7)} if least == 0 else lengths)
        assert (len(lengths) > 1) == (least > 0)


def test_rows_are_asked_about_together_and_each_until_it_is_done():
    opener = models()
    drafter = build(opener, min_probability=0)
    (model,) = opener.opened
    guesses = drafter.propose([3, 1, 2], HISTORIES[:3], [2, 0, 4])
    assert [len(guess) for guess in guesses] == [2, 0, 4]
    assert model.asked == [[3, 2], [3, 2], [2], [2]]


def test_the_first_unlikely_token_is_proposed_and_is_the_last():
    opener = models()
    drafter = build(opener, min_probability=0.5)
    (model,) = opener.opened
    unlikely = [h for h in HISTORIES if model.next_token(h)[1] == np.float32(UNSURE)]
    assert unlikely
    assert all(len(drafter.propose([0], [history], [7])[0]) == 1 for history in unlikely)


def test_a_history_at_the_models_limit_is_guessed_for_up_to_there():
    drafter = build(models(max_len=11), min_probability=0)
    (guess,) = drafter.propose([0], [HISTORIES[0]], [7])
    assert len(guess) == 3
    (guess,) = drafter.propose([0], [np.arange(12, dtype=np.int32)], [7])
    assert not len(guess)


def test_rows_that_come_and_go_are_forgotten():
    opener = models()
    drafter = build(opener)
    new = NewRow(
        row=2,
        handle=1,
        token_ids=HISTORIES[0],
        num_computed=0,
        num_output=0,
        block_ids=(),
        sampling=SamplingParams(),
    )
    drafter.enter(new)
    drafter.leave(1)
    assert opener.opened[0].left == [2, 1]


class TestRefused:
    def test_without_a_model(self):
        with pytest.raises(ConfigError, match="--drafter-option model="):
            build(models(), model="")

    def test_by_a_worker_that_gives_none(self):
        with pytest.raises(ConfigError, match="use --worker torch"):
            build(None)

    def test_as_the_worker_says(self):
        with pytest.raises(ModelError, match="'other'"):
            build(models(), model="other")

    @pytest.mark.parametrize(
        "options",
        [{"num_drafts": 0}, {"num_drafts": 16}, {"min_probability": 1.5}, {"kv_cache_mib": 0}],
    )
    def test_options_out_of_bounds(self, options):
        with pytest.raises(PluginError, match=next(iter(options))):
            build(models(), **options)

"""The processors: their changes to logits, and their state per row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sampler_driver import VOCAB, SamplerDriver, processed_by_hand

from tenonry.sampling_params import SamplingParams
from tenonry_torch_base.sampler.processors import LogitsProcessor


def test_every_logit_is_changed_as_the_plain_sampler_changes_it():
    """Above and below zero, seen in the prompt, once and twice in the output, and by all rules together."""
    requests = [
        {"presence_penalty": 0.7}, {"frequency_penalty": -0.4},
        {"repetition_penalty": 1.3}, {"repetition_penalty": 0.6},
        {"presence_penalty": -1.5, "frequency_penalty": 0.4, "repetition_penalty": 1.3},
        {"logit_bias": {2: 3.0, 9: -3.0}, "presence_penalty": 0.7}, {"min_tokens": 9, "frequency_penalty": 0.4},
        {"allowed_token_ids": [2, 3, 5, 7, 11], "repetition_penalty": 1.3},
    ]  # fmt: skip
    driver = SamplerDriver()
    logits = torch.linspace(-3, 3, VOCAB).flip(0).roll(7).repeat(len(requests), 1)
    for row, sampling in enumerate(requests):
        driver.enter(
            row,
            SamplingParams(**sampling),
            prompt=(2, 30, 11),
            output=(3, 30, 3, 25),
            stop=(5, 6),
            bad=[(25, 8)],
        )
    changed = driver.sampler._processed(logits, driver.step(range(len(requests))), is_shared=True)
    for row in range(len(requests)):
        np.testing.assert_allclose(
            changed[row], processed_by_hand(logits[row], *driver.rows[row]), atol=1e-5
        )


def test_penalties_count_what_was_sampled_since_the_row_entered():
    driver = SamplerDriver()
    driver.enter(
        0,
        SamplingParams(temperature=0.0, frequency_penalty=1.0, repetition_penalty=1.1),
        output=(7,),
    )
    logits = torch.zeros(1, VOCAB)
    logits[0, 8:12] = torch.tensor([2.0, 1.9, 1.8, 1.7])
    chosen = []
    for _ in range(6):
        sampled = driver.sample(logits, [0])
        sampling, prompt, output, stop, bad = driver.rows[0]
        values = processed_by_hand(logits[0], sampling, prompt, output, stop, bad)
        assert values[int(sampled.token_ids[0])] == pytest.approx(max(values), abs=1e-5)
        driver.accept([0], sampled)
        chosen.append(int(sampled.token_ids[0]))
    assert len(set(chosen)) > 2


def test_a_row_is_forgotten_when_it_leaves():
    driver = SamplerDriver()
    driver.enter(
        0,
        SamplingParams(
            temperature=0.0, allowed_token_ids=[3], logit_bias={3: 1.0}, presence_penalty=1.0
        ),
    )
    driver.sampler.leave(0)
    driver.enter(0, SamplingParams(temperature=0.0))
    logits = torch.zeros(1, VOCAB)
    logits[0, 9] = 1.0
    assert driver.sampler.columns.is_plain[0]
    assert driver.sample(logits, [0]).token_ids.tolist() == [9]


def test_table_lines_are_used_again():
    driver = SamplerDriver()
    for _ in range(50):
        driver.enter(1, SamplingParams(presence_penalty=1.0, allowed_token_ids=[1, 2]))
        driver.sampler.leave(1)
    num_lines = {
        processor.name: processor._tables.num_lines
        for processor in driver.sampler.processors
        if hasattr(processor, "_tables")
    }
    assert num_lines == {"allowed_token_ids": 1, "penalties": 1}


def test_bad_words_look_at_output_tokens_only_and_share_last_tokens():
    driver = SamplerDriver()
    driver.enter(0, SamplingParams(temperature=0.0), prompt=(5, 6), output=(), bad=[(6, 9), (5, 9)])
    driver.enter(
        1,
        SamplingParams(temperature=0.0),
        prompt=(1,),
        output=(5, 6),
        bad=[(6, 9), (4, 9), (5, 6, 8)],
    )
    logits = torch.zeros(2, VOCAB)
    logits[:, 9], logits[:, 8], logits[:, 7] = 3.0, 2.0, 1.0
    assert driver.sample(logits, [0, 1]).token_ids.tolist() == [9, 7]


def test_stop_ids_wait_for_min_tokens():
    driver = SamplerDriver()
    driver.enter(0, SamplingParams(temperature=0.0, min_tokens=2), stop=(9,))
    logits = torch.zeros(1, VOCAB)
    logits[0, 9], logits[0, 8] = 2.0, 1.0
    tokens = []
    for _ in range(3):
        sampled = driver.sample(logits, [0])
        driver.accept([0], sampled)
        tokens += sampled.token_ids.tolist()
    assert tokens == [8, 8, 9]


class _OnlyEven(LogitsProcessor):
    name = "only_even"

    def enter(self, new):
        return True

    def apply(self, logits, step):
        logits[:, 1::2] = float("-inf")


def test_a_further_logits_processor_comes_last():
    driver = SamplerDriver(extra=[_OnlyEven])
    driver.enter(0, SamplingParams(temperature=0.0))
    logits = torch.zeros(1, VOCAB)
    logits[0, 9], logits[0, 8] = 2.0, 1.0
    assert driver.sample(logits, [0]).token_ids.tolist() == [8]

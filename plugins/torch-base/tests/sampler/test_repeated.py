"""Sampling inside a graph chooses the sampler's tokens, for any mixture of parameters, and reads no value."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from forked_programs import forked_programs
from sampler_driver import ROWS, VOCAB, SamplerDriver

from tenonry.sampling_params import SamplingParams
from tenonry.step import RowFailure
from tenonry_torch_base.buffers import HostBuffers
from tenonry_torch_base.sampler.repeated import DrawRows, Draws, draws_of, sampled

CPU = torch.device("cpu")
WHOLE = [
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.3, "seed": 7},
    {"temperature": 3.0},
]
TRUNCATED = [
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 5},
    {"temperature": 0.0},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 0.7, "top_k": 7, "top_p": 0.5, "seed": 3},
    {"temperature": 2.0},
    {"temperature": 1.0, "top_p": 0.01},
    {"temperature": 2.0, "top_k": 30, "top_p": 0.99, "min_p": 0.01},
]


def driver_of(params, vocab=VOCAB):
    driver = SamplerDriver(vocab)
    for row, given in enumerate(params):
        driver.enter(row, SamplingParams(**given), output=(4,) * row)
    return driver


def both(driver, logits, rows, size):
    """The sampler's tokens and failures, and those of a graph of `size` rows."""
    step = driver.step(rows)
    columns = driver.sampler.columns
    kind = draws_of(columns, step.row)
    wanted = driver.sampler.sample(logits.clone(), step)
    draws = DrawRows(size, CPU)
    draws.values.fill_(float("nan"))
    draws.fill(columns, step, HostBuffers(CPU, 1))
    padded = torch.full((size, logits.shape[1]), float("nan"), dtype=logits.dtype)
    padded[: len(rows)] = logits
    found = [each[: len(rows)] for each in sampled(padded, draws.values, kind)]
    return (wanted.token_ids, wanted.failure), found, kind


@pytest.mark.parametrize(
    ("params", "kind"),
    [([{"temperature": 0.0}] * 3, Draws.GREEDY), (WHOLE, Draws.RANDOM), (TRUNCATED, Draws.RANDOM)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [VOCAB, 1500])
def test_tokens_are_those_of_the_sampler(params, kind, dtype, vocab):
    driver = driver_of(params, vocab)
    rows = np.random.default_rng(0).permutation(len(params))
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        logits = (torch.randn(len(rows), vocab, generator=generator) * 3).to(dtype)
        wanted, found, found_kind = both(driver, logits, rows, ROWS)
        assert found_kind is kind
        assert all(map(torch.equal, found, wanted))


def test_tiles_change_no_token(monkeypatch):
    driver = driver_of(TRUNCATED)
    logits = torch.randn(len(TRUNCATED), VOCAB) * 3
    rows = np.arange(len(TRUNCATED))
    _, whole, _ = both(driver, logits, rows, ROWS)
    monkeypatch.setattr("tenonry_torch_base.sampler.repeated.DEVICE_TILE_ELEMENTS", 3 * VOCAB)
    _, found, _ = both(driver, logits, rows, ROWS)
    assert all(map(torch.equal, found, whole))


def test_rows_without_a_token_fail_as_in_the_sampler():
    driver = driver_of([{"temperature": 1.0}] * 3 + [{"temperature": 0.0}] * 2)
    logits = torch.randn(5, VOCAB)
    logits[0] = float("-inf")
    logits[1, 3] = float("nan")
    logits[2, 3] = float("inf")
    logits[3, 5] = float("nan")
    logits[4, 5] = float("inf")
    (_, wanted), (_, found), _ = both(driver, logits, np.arange(5), 5)
    numerical = int(RowFailure.NUMERICAL)
    assert found.tolist() == wanted.tolist()
    assert found.tolist() == [int(RowFailure.SAMPLING), *[numerical] * 3, 0]


@pytest.mark.parametrize(
    "given", [{"logprobs": 1}, {"presence_penalty": 0.5}, {"logit_bias": {3: 1.0}}]
)
def test_rows_that_need_more_are_left_to_the_sampler(given):
    driver = driver_of([{"temperature": 1.0}, {"temperature": 1.0, **given}])
    assert draws_of(driver.sampler.columns, np.arange(2, dtype=np.int32)) is None


BEGIN = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
import torch
from fake_device import HostWaits, fake_device
from tenonry_torch_base.sampler.repeated import PADDING, Draws, sampled
"""
COUNT = """
with fake_device() as device:
    values = torch.zeros(len(PADDING), 8, dtype=torch.float64, device=device)
    logits = torch.zeros(8, 1000, dtype=torch.bfloat16, device=device)
    found = {}
    for kind in Draws:
        with HostWaits() as counted:
            sampled(logits, values, kind)
        found[kind.name] = counted.places
print(json.dumps(found))
"""


@pytest.mark.integration
def test_no_value_is_read_on_the_host():
    with forked_programs(BEGIN) as run:
        assert json.loads(run(COUNT)) == {kind.name: {} for kind in Draws}

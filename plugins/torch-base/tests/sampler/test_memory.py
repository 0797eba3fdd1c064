"""The bytes that are set aside for sampling hold a sampling with all parameters; on a device without a GPU's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked_programs import forked_programs

from tenonry_torch_base.sampler.memory import sampling_bytes

pytestmark = pytest.mark.integration

BEGIN = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
import numpy as np
import torch
from fake_device import LiveBytes, fake_device
from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow
from tenonry_torch_base.sampler import memory
from tenonry_torch_base.sampler.processors import ProcessorContext, SampleStep
from tenonry_torch_base.sampler.sampler import Sampler
"""
SORT = 24  # bytes per element of a sort's own copies of values and indices
PROGRAM = """
rows, vocab, length = {rows}, {vocab}, {length}
params = SamplingParams(
    temperature=0.9, top_p=0.9, min_p=0.01, presence_penalty=0.5, repetition_penalty=1.1, logprobs=5,
    allowed_token_ids=[1, 2, 3], logit_bias={{3: 1.0}})
with fake_device() as device, LiveBytes() as live:
    history = torch.zeros(rows, length + 1, dtype=torch.int32, device=device)
    context = ProcessorContext(rows, vocab, device, history, np.ones((rows, length + 1), np.int32))
    sampler = Sampler(context)
    for row in range(rows):
        sampler.enter(NewRow(row=row, handle=row, token_ids=np.array([1, 2, 3], np.int32), num_computed=0,
                             num_output=2, block_ids=(), sampling=params, stop_token_ids=(), bad_words=()))
    logits = torch.randn(rows, vocab, dtype=torch.bfloat16, device=device)
    sampler.sample(logits, SampleStep(np.arange(rows), np.full(rows, 2), np.full(rows, 3)))
tile = min(rows * vocab, max(vocab, memory.DEVICE_TILE_ELEMENTS))
print(live.peak, tile)
"""


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[str], str]]:
    with forked_programs(BEGIN) as said:
        yield said


@pytest.mark.parametrize(
    ("rows", "vocab", "length"), [(3, 1000, 64), (8, 150_000, 10_000), (200, 128_256, 4096)]
)
@pytest.mark.nightly_after(1)
def test_a_sampling_with_every_parameter_fits(run, rows, vocab, length):
    peak, tile = map(int, run(PROGRAM.format(rows=rows, vocab=vocab, length=length)).split())
    bound = sampling_bytes(rows, vocab, length)
    assert peak + SORT * tile <= bound
    assert bound <= 3 * (peak + SORT * tile), "memory that no request could use"

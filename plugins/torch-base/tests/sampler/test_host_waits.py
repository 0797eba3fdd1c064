"""No parameter of a request makes the host wait for the device: counted on a device that only pretends to compute."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked_programs import forked_programs

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parent.parent
BEGIN = f"""
import json, sys
sys.path.insert(0, {str(TESTS)!r})
import numpy as np
import torch
from fake_device import HostWaits, fake_device
from tenonry.sampling_params import SamplingParams, StructuredOutput
from tenonry.step import NewRow
from tenonry_torch_base.sampler.processors import ProcessorContext, SampleStep
from tenonry_torch_base.sampler.sampler import Sampler
from tenonry_torch_base.sampler.grammar import GrammarMasks
from functools import partial
from types import SimpleNamespace
ROWS, VOCAB, LENGTH = 8, 1000, 64

def waits(extra=(), bad=(), plain=0, others=dict(temperature=0.0), **params):
    with fake_device() as device:
        tokens = np.ones((ROWS, LENGTH), np.int32)
        history = torch.zeros(ROWS, LENGTH, dtype=torch.int32, device=device)
        context = ProcessorContext(ROWS, VOCAB, device, history, tokens)
        sampler = Sampler(context, extra=extra)
        with HostWaits() as counted:
            for row in range(ROWS):
                given = params if row >= plain else others
                sampler.enter(NewRow(
                    row=row, handle=row, token_ids=np.array([1, 2, 3], np.int32), num_computed=0,
                    num_output=2, block_ids=(), sampling=SamplingParams(**given),
                    stop_token_ids=(0,), bad_words=tuple(bad) if row >= plain else ()))
            for length in (3, 4):
                step = SampleStep(np.arange(ROWS, dtype=np.int32), np.full(ROWS, length - 1, np.int32),
                                  np.full(ROWS, length, np.int32))
                logits = torch.randn(ROWS, VOCAB, dtype=torch.bfloat16, device=device)
                sampled = sampler.sample(logits, step)
        assert sampled.token_ids.device.type == device.type
    return counted.places
"""
FEATURES = {
    "greedy": "temperature=0.0",
    "temperature": "temperature=1.0",
    "seed": "temperature=0.7, seed=3",
    "top_p": "temperature=1.0, top_p=0.9",
    "top_k": "temperature=1.0, top_k=20",
    "top_k and top_p": "temperature=1.0, top_k=20, top_p=0.9",
    "min_p": "temperature=1.0, min_p=0.05",
    "penalties": "temperature=0.0, presence_penalty=0.5, frequency_penalty=0.1, repetition_penalty=1.2",
    "min_tokens": "temperature=0.0, min_tokens=9",
    "logit_bias": "temperature=0.0, logit_bias={3: 1.0}",
    "allowed_token_ids": "temperature=0.0, allowed_token_ids=[1, 2, 3]",
    "bad_words": "temperature=0.0, bad=[(4,), (1, 2, 5)]",
    "logprobs": "temperature=0.0, logprobs=5",
    "logprobs of drawn tokens": "temperature=1.0, logprobs=0",
}


GRAMMAR = """
class Matcher:
    def accept(self, tokens): return len(tokens)
    def rollback(self, count): pass
class Backend:
    def accept_each(self, matchers, tokens): return [True] * len(matchers)
    def fill_masks(self, matchers, masks): masks[:] = -1
class Compiled:
    def done(self): return True
    def result(self): return SimpleNamespace(matcher=lambda end_ids: Matcher())
store = SimpleNamespace(backend=Backend(), compiled=lambda spec: Compiled(), shutdown=lambda: None)
grammar = dict(extra=[partial(GrammarMasks, store=store)], structured_output=StructuredOutput(regex="a*"))
"""
FEATURES |= {
    "grammar": "temperature=0.0, **grammar",
    "grammar and temperature": "temperature=1.0, **grammar",
    "grammar and logprobs": "temperature=0.0, logprobs=2, **grammar",
}


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[str], str]]:
    with forked_programs(BEGIN) as said:
        yield said


@pytest.fixture(scope="module")
def counted(run) -> dict[str, dict[str, int]]:
    """Waits of every feature, with all rows and among greedy ones."""
    counts = ",".join(
        f"{feature + (' among greedy rows' if plain else '')!r}: waits(plain={plain}, {arguments})"
        for feature, arguments in FEATURES.items()
        for plain in (0, 3)
    )
    return json.loads(run(f"{GRAMMAR}\nprint(json.dumps({{{counts}}}))"))


@pytest.mark.parametrize("feature", FEATURES)
def test_the_host_never_waits_for_the_device(counted, feature):
    """Neither as rows enter nor in a step; also where the rows with the feature are picked out among others."""
    assert counted[feature] == {}
    assert counted[f"{feature} among greedy rows"] == {}


def test_rows_without_truncation_are_not_sorted(run):
    """Two rows of eight have top-p: two are sorted in each of two steps. Fake tensors of one element are constants."""
    program = """
sort, sorted_rows = torch.Tensor.sort, []
def noted(values, *args, **options):
    sorted_rows.append(len(values))
    return sort(values, *args, **options)
torch.Tensor.sort = noted
def among(number, **params):
    assert not waits(plain=ROWS - number, others=dict(temperature=1.0), **params)
    return sorted_rows[-2:]
print(json.dumps([among(2, temperature=1.0, top_p=0.9), among(8, temperature=1.0, top_k=5)]))
"""
    assert json.loads(run(program)) == [[2, 2], [8, 8]]


def test_whatever_waits_is_counted(run):
    """The count itself: a value read, a size, a mask, an index and copies that the host waits for."""
    program = """
with fake_device() as device:
    on_device, on_host = torch.zeros(4, device=device), torch.zeros(4)
    with HostWaits() as counted:
        bool((on_device > 0).any())
        on_device.nonzero()
        on_device[on_device > 0] = 1.0
        on_device[torch.tensor([1])]
        on_host.to(device)
        on_host.to(device, non_blocking=True)
        on_device.cpu()
        on_host.pin_memory().to(device, non_blocking=True)
print(sum(counted.places.values()), len({place.partition(" at ")[0] for place in counted.places}))
"""
    assert run(program).split() == ["7", "6"]

"""Frequencies that would follow the longest sequence of a batch are fixed, so neighbours change nothing."""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools
from worker_driver import Driver, Request

from tenonry_worker_torch.loading.rotary import call_rotary, fix_frequencies

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8,
    "long_factor": [1.0 + i for i in range(8)], "original_max_position_embeddings": 32,
}  # fmt: skip
MODELS = {
    "dynamic": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 32}),
    "longrope": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 32}),
}


def build(kind, monkeypatch):
    family, changes = MODELS[kind]
    name, values = worker_families.FAMILIES[family]
    monkeypatch.setitem(worker_families.FAMILIES, family, (name, values | changes))
    return worker_families.build(family)


def serve(model, prompts):
    runner = worker_tools.runner(model, max_model_len=model.max_model_len)
    requests = [Request(i + 1, prompt, max_tokens=8) for i, prompt in enumerate(prompts)]
    Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4).run(requests)
    return [request.output for request in requests]


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("kind", MODELS)
def test_a_long_neighbour_changes_nothing(kind, fuse, monkeypatch):
    model = worker_tools.loaded(build(kind, monkeypatch), fuse=fuse, max_model_len=60)
    short, long = worker_tools.prompts((6, 50))
    assert serve(model, [short, long])[0] == serve(model, [short])[0]


@pytest.mark.parametrize("kind", MODELS)
def test_within_the_original_length_tokens_equal_generate(kind, monkeypatch):
    prompts = worker_tools.prompts((6, 15))
    reference = build(kind, monkeypatch)
    wanted = [
        reference.generate(
            torch.tensor([prompt]),
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    assert serve(worker_tools.loaded(build(kind, monkeypatch), max_model_len=32), prompts) == wanted


def test_fixed_frequencies_are_those_of_the_longest_sequence(monkeypatch):
    model = build("longrope", monkeypatch)
    rotary = model.model.rotary_emb
    x = torch.zeros(1, 1, 1)
    short = rotary(x, torch.tensor([[3]]))[0]
    assert fix_frequencies(model, 60) == 1
    assert not torch.equal(rotary(x, torch.tensor([[3]]))[0], short)
    assert fix_frequencies(model, 60) == 0
    assert fix_frequencies(worker_families.build("gemma3"), 60) == 0


class Rotary(torch.nn.Module):
    """Gives back the positions that it is given."""

    def __init__(self, sections):
        super().__init__()
        self.mrope_section = sections

    def forward(self, x, position_ids):
        return x, position_ids


@pytest.mark.parametrize(
    ("sections", "shape"),
    [
        (None, (1, 5)),
        ([2, 1, 1], (3, 1, 5)),
        ([1, 1, 1, 1], (4, 1, 5)),
        ({"full": [2, 2]}, (2, 1, 5)),
    ],
)
def test_a_module_with_sections_gets_a_position_for_each(sections, shape):
    """Not every version of transformers repeats them in the module."""
    positions = torch.arange(5)[None]
    _, given = call_rotary(Rotary(sections), torch.zeros(1), positions, "full")
    assert torch.equal(given, positions.expand(shape))

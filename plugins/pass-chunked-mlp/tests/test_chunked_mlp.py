"""The conformance suite over `chunked-mlp`, with chunks shorter than its prompts, and the sizes of chunks."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

from tenonry.plugin.manager import resolve_point
from tenonry_pass_chunked_mlp import ChunkedFeedForward, ChunkedOptions
from tenonry_pass_chunked_mlp.chunked import ChunkedMLP
from tenonry_testkit.model_pass import ModelPassContract
from tenonry_worker_torch.fuse.block import FusedMLP


@pytest.mark.nightly
class TestChunkedFeedForward(ModelPassContract):
    model_pass = "chunked-mlp"

    @pytest.fixture(autouse=True)
    def _short_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ChunkedFeedForward, "options", ChunkedOptions(tokens=3))


def test_name_leads_to_the_class():
    assert resolve_point(ModelPassContract.point, "chunked-mlp")[0] is ChunkedFeedForward


class Watched:
    """A projection that notes how many tokens it gets at a time."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight
        self.sizes: list[int] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        return functional.linear(x, self.weight)


@pytest.mark.parametrize("count", [1, 4, 5, 11])
def test_chunks_are_bounded_and_the_result_is_that_of_one(count):
    torch.manual_seed(0)
    gate_up, down = Watched(torch.randn(12, 5)), Watched(torch.randn(5, 6))
    plain = FusedMLP(copy.deepcopy(gate_up), down, functional.silu)
    chunked = ChunkedMLP(FusedMLP(gate_up, down, functional.silu), tokens=4)
    x = torch.randn(count, 5)
    torch.testing.assert_close(chunked.inner(x), plain.inner(x))
    assert max(gate_up.sizes) <= 4
    assert sum(gate_up.sizes) == count

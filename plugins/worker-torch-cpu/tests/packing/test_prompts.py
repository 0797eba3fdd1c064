"""Linear layers in oneDNN's layout: the same numbers, and nothing is packed that other code reads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tenonry_worker_torch.changes import Changes
from tenonry_worker_torch_cpu.packing.prompts import PackedLinear, can_pack, pack_linears

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not can_pack(torch.float32, CPU), reason="torch lacks oneDNN")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 128)
        self.up = nn.Linear(128, 160)
        self.down = nn.Linear(160, 128, bias=False)
        self.small = nn.Linear(128, 4)
        self.out = nn.Linear(128, 256, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids):
        states = self.down(self.up(self.embed(ids)))
        return self.out(states), self.small(states)


def test_the_numbers_stay_and_shared_weights_are_left():
    torch.manual_seed(0)
    model = Model().eval().requires_grad_(requires_grad=False)
    ids = torch.arange(12).view(3, 4)
    expected = model(ids)
    up = model.up
    changes = Changes()
    assert pack_linears(model, changes.set) == 2
    assert isinstance(model.up, PackedLinear)
    assert isinstance(model.down, PackedLinear)
    torch.testing.assert_close(model.up.weight, up.weight)
    torch.testing.assert_close(model(ids), expected)
    changes.undo()
    assert model.up is up


def test_other_types_and_devices_are_left():
    assert not can_pack(torch.float16, CPU)
    assert not can_pack(torch.float32, torch.device("cuda"))

"""Experts of a device: as the module's own code computes them, and without a value read on the host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from forked_programs import forked_programs
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from tenonry_torch_base.parallel.experts import grouped, grouped_mm

TESTS = Path(__file__).parent.parent
EXPERTS, HIDDEN, INNER = 4, 16, 32


def experts(dtype=torch.float32):
    torch.manual_seed(0)
    config = MixtralConfig(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
    )
    config._experts_implementation = "eager"
    module = MixtralExperts(config).to(dtype)
    for weight in module.parameters():
        weight.data.normal_(0, 0.2)
    return module.requires_grad_(False)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("tokens", [1, 9, 64])
def test_outputs_are_those_of_the_module(dtype, limit, tokens):
    module = experts(dtype)
    hidden = torch.randn(tokens, HIDDEN).to(dtype)
    chosen = torch.stack([torch.randperm(EXPERTS)[:2] for _ in range(tokens)])
    weights = torch.rand(tokens, 2)
    found = grouped(module, hidden, chosen, weights)
    wanted = module(hidden, chosen, weights)
    assert found.dtype == dtype
    assert float((found - wanted).norm() / wanted.norm()) <= limit


def test_tokens_are_computed_in_tiles_of_bounded_memory(monkeypatch):
    """With any number of ranks and of their tokens."""
    module = experts()
    hidden, weights = torch.randn(50, HIDDEN), torch.rand(50, 2)
    chosen = torch.randint(-EXPERTS, 2 * EXPERTS, (50, 2))
    wanted = grouped(module, hidden, chosen, weights)
    seen = []

    def multiply(x, *args, **given):
        seen.append(len(x))
        return grouped_mm(x, *args, **given)

    monkeypatch.setattr("tenonry_torch_base.parallel.experts.grouped_mm", multiply)
    monkeypatch.setattr("tenonry_torch_base.parallel.experts.PAIRS", 24)
    torch.testing.assert_close(grouped(module, hidden, chosen, weights), wanted)
    assert max(seen) == 24
    assert len(seen) == 2 * 5


def test_experts_of_other_ranks_add_nothing():
    module = experts()
    hidden = torch.randn(12, HIDDEN)
    chosen = torch.randint(-EXPERTS, 2 * EXPERTS, (12, 2))
    chosen[3] = -1
    weights = torch.rand(12, 2)
    inside = (chosen >= 0) & (chosen < EXPERTS)
    wanted = module(hidden, chosen.clamp(0, EXPERTS - 1), weights * inside)
    found = grouped(module, hidden, chosen, weights)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert not found[3].any()


COUNT = f"""
import json, sys
sys.path.insert(0, {str(TESTS)!r})
import torch
from types import SimpleNamespace
from fake_device import HostWaits, fake_device
from tenonry_torch_base.parallel.experts import PassCounts, SpreadExperts
from tenonry_torch_base.parallel.groups import ExpertGroups, TensorGroup

class Group(TensorGroup):
    exchanges = 0
    def stack(self, x): return x.new_zeros(self.size, *x.shape)
    def sum(self, x): return x
    def counts(self, count):
        Group.exchanges += 1
        return [count] * self.size
"""
LAYERS = """
with fake_device() as device:
    weight = lambda *shape: torch.zeros(4, *shape, dtype=torch.bfloat16, device=device)
    module = SimpleNamespace(gate_up_proj=weight(64, 16), down_proj=weight(16, 32), act_fn=torch.nn.SiLU())
    counts, groups = PassCounts(), ExpertGroups(Group(1, 2), Group(1, 2))
    layers = [SpreadExperts(module, groups, counts, begins_pass=number == 0) for number in range(3)]
    x = torch.zeros(5, 16, dtype=torch.bfloat16, device=device)
    chosen = torch.zeros(5, 2, dtype=torch.long, device=device)
    weights = torch.zeros(5, 2, dtype=torch.bfloat16, device=device)
    with HostWaits() as counted:
        for layer in layers:
            x = layer(x, chosen, weights)
print(json.dumps([counted.places, Group.exchanges, list(x.shape)]))
"""


@pytest.mark.integration
def test_no_layer_waits_for_the_device_and_one_for_other_hosts():
    with forked_programs(COUNT) as run:
        waits, exchanges, shape = json.loads(run(LAYERS))
    assert waits == {}
    assert exchanges == 1
    assert shape == [5, 16]


OF_THE_MODULE = """
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
config = MixtralConfig(hidden_size=16, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2)
config._experts_implementation = "grouped_mm"
with fake_device() as device:
    with torch.device("meta"):
        module = MixtralExperts(config)
    for name, each in list(module.named_parameters()):
        weight = torch.empty(each.shape, dtype=torch.bfloat16, device=device)
        setattr(module, name, torch.nn.Parameter(weight, requires_grad=False))
    x = torch.zeros(5, 16, dtype=torch.bfloat16, device=device)
    chosen = torch.zeros(5, 2, dtype=torch.long, device=device)
    with HostWaits() as counted:
        module(x, chosen, torch.zeros(5, 2, dtype=torch.bfloat16, device=device))
print(json.dumps(counted.places))
"""


@pytest.mark.integration
def test_experts_of_one_rank_wait_for_nothing():
    """Those of transformers, which compute where no experts are shared out."""
    with forked_programs(COUNT) as run:
        assert json.loads(run(OF_THE_MODULE)) == {}

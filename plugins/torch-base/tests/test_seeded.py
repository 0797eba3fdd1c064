from __future__ import annotations

import traceback

import pytest
import torch

from tenonry_torch_base.seeded import seeded


def drawn(seed: int) -> list[float]:
    with seeded(seed):
        return torch.rand(4).tolist()


def test_numbers_follow_from_the_seed():
    """They are those of `torch.manual_seed`, so that random weights stay reproducible."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        wanted = torch.rand(4).tolist()
    assert drawn(7) == drawn(7) == wanted
    assert drawn(8) != wanted


def test_the_caller_draws_on_as_before():
    torch.manual_seed(1)
    wanted = torch.rand(6).tolist()
    torch.manual_seed(1)
    got = torch.rand(3).tolist()
    drawn(7)
    with pytest.raises(RuntimeError), seeded(7):
        torch.rand(-2)
    assert got + torch.rand(3).tolist() == wanted


def test_no_stack_is_formatted(monkeypatch):
    """As `torch.manual_seed` does for devices that are not there; kernels and norms are tried once for each layer."""

    def formatted(*_arguments, **_options):
        raise AssertionError("a stack was formatted")

    monkeypatch.setattr(traceback, "format_stack", formatted)
    drawn(7)


@pytest.mark.gpu
def test_a_device_is_seeded_and_goes_on_as_before():
    device = torch.device("cuda:0")
    torch.manual_seed(1)
    wanted = torch.rand(4, device=device).tolist()
    torch.manual_seed(1)
    with seeded(7, device):
        first = torch.rand(4, device=device).tolist()
    with seeded(7, device):
        assert torch.rand(4, device=device).tolist() == first != wanted
    drawn(7)  # of the CPU alone: the device's continues
    assert torch.rand(4, device=device).tolist() == wanted

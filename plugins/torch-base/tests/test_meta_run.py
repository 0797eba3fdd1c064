"""A model without storage can be run, as far as shapes go."""

from __future__ import annotations

import pytest
import torch

from tenonry_torch_base.meta_run import MAX_KEPT, MetaRun

META = torch.device("meta")


@pytest.fixture(autouse=True)
def within():
    with MetaRun():
        yield


def test_positions_keep_their_values():
    positions = torch.arange(5, device=META)
    assert positions.tolist() == [0, 1, 2, 3, 4]
    assert not (positions.diff() != 1).any()
    assert torch.arange(3).to(META).tolist() == [0, 1, 2]


def test_large_tables_and_numbers_with_a_fraction_do_not():
    assert torch.arange(MAX_KEPT + 1, device=META).is_meta
    assert torch.zeros(3, device=META).is_meta


def test_both_devices_meet():
    weight = torch.empty(10, 4, device=META)
    found = torch.nn.functional.embedding(torch.arange(3), weight)
    assert found.is_meta
    assert found.shape == (3, 4)
    assert (found * torch.ones(3, 1)).shape == (3, 4)


def test_a_value_that_depends_on_weights_reads_as_zero():
    scores = torch.empty(4, device=META)
    assert scores.sum().item() == 0.0
    assert not (scores > 1).any()
    assert torch.empty((), dtype=torch.long, device=META).item() == 0


def test_a_search_by_value_finds_nothing():
    assert torch.empty(4, 2, device=META).nonzero().shape == (0, 2)


def test_a_copy_to_the_cpu_is_zeros():
    copied = torch.empty(3, device=META).to("cpu")
    assert not copied.is_meta
    assert copied.tolist() == [0.0, 0.0, 0.0]


def test_a_copy_like_a_tensor_with_values():
    with torch.inference_mode():
        copied = torch.empty(3, device=META).to(torch.arange(3))
    assert copied.tolist() == [0, 0, 0]


def test_a_view_does_not_depend_on_the_layout():
    assert torch.empty(2, 3, 4, device=META).transpose(0, 1).view(3, 8).shape == (3, 8)


def test_it_ends_with_its_block():
    """The outer one is the fixture's."""
    with MetaRun():
        torch.arange(2, device=META).tolist()
    assert torch.arange(2, device=META).tolist() == [0, 1]


def test_a_tensor_that_goes_where_another_is_has_its_shape_there():
    """Without gradients too, where it arrives as another operation."""
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            made = torch.empty(2, 3, device=META)
            there = made.to(torch.arange(2).device)
            assert there.shape == (2, 3)
            assert there.device.type == "cpu"
            assert made.to(torch.device("cpu"), torch.float16).dtype == torch.float16
            assert made.to(torch.float16).is_meta

"""Switch of oneDNN."""

from __future__ import annotations

import pytest
import torch

from tenonry_torch_base.onednn import without_onednn


@pytest.mark.parametrize("applies", [False, True])
def test_onednn_is_disabled_until_the_end(applies):
    assert torch.backends.mkldnn.enabled
    with without_onednn(applies=applies):
        assert torch.backends.mkldnn.enabled is not applies
    assert torch.backends.mkldnn.enabled


def test_an_error_enables_it_again():
    context = without_onednn(applies=True)
    context.__enter__()
    assert not context.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert torch.backends.mkldnn.enabled

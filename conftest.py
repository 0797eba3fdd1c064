"""Settings for every test of the repository: tests marked `gpu` are skipped where there is no CUDA device."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need a GPU; torch is asked only if there are any."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not cuda_is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def cuda_is_available() -> bool:
    """Return whether torch is installed and sees a CUDA device."""
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return torch.cuda.is_available()

"""The numbers of ranks that facts name are those that a start can cut a model for, family by family."""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools

from tenonry.errors import ModelError
from tenonry_testkit.tiers import nightly_unless
from tenonry_torch_base.parallel.groups import Link, Parallel, TensorGroup
from tenonry_worker_torch.loading.load import load_model, look
from tenonry_worker_torch.worker import TorchWorker

SIZES = (2, 3)


@pytest.mark.parametrize(
    "family",
    nightly_unless(lambda family: family in worker_families.USUAL, worker_families.FAMILIES),
)
@pytest.mark.slow
@pytest.mark.nightly_after(4)
def test_ranks_that_facts_name_are_those_that_load(family, tmp_path):
    """Rank 0's part is loaded as in a start; the first run of cut layers is left to the tests of families."""
    worker_families.save(family, tmp_path)
    facts = TorchWorker(worker_tools.context(tmp_path)).examine()
    named = [size for size in SIZES if size in facts.features["tensor_parallel"]]
    assert named == [size for size in SIZES if loads(tmp_path, size)]


def loads(folder, size):
    found = look(str(folder), load_format="auto")
    try:
        load_model(
            str(folder),
            load_format="auto",
            dtype="float32",
            device=torch.device("cpu"),
            seed=0,
            parallel=Parallel(TensorGroup(0, size), Link()),
            found=found,
        )
    except ModelError:
        return False
    return True

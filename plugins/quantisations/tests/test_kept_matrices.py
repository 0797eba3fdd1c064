"""Checkpoints whose quantised matrices go to the device as they are: no floats of the model exist, and results are the
same. On the CPU, where a load for a GPU does the same.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from quantised_answers import PROMPT
from quantised_models import GROUP, model_folder, write_floats, write_plainly

from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_torch_base.buffers import HostBuffers
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.loading.load import load_model, look
from tenonry_worker_torch.loading.stored import StoredLinear
from tenonry_worker_torch.passes.model_pass import NotUsed
from tenonry_worker_torch.passes.weights import Quantise

CPU = torch.device("cpu")
MATRICES = 2 * 7  # of layers; the head is floats
WRITE = {
    "gptq": lambda folder: write_plainly(
        folder, "gptq", {"bits": 4, "group_size": GROUP, "sym": False, "desc_act": True}
    ),
    "awq": lambda folder: write_plainly(
        folder, "awq", {"bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
    ),
    "fp8": lambda folder: write_floats(folder, [32, 16]),
}


@pytest.fixture(params=WRITE)
def checkpoint(request, tmp_path):
    model_folder(tmp_path)
    WRITE[request.param](tmp_path)
    return str(tmp_path)


def loaded(path, *, keeps_matrices):
    found = look(path, load_format="auto")
    module = load_model(
        path, load_format="auto", dtype="float32", device=CPU, seed=0, found=found, keeps_matrices=keeps_matrices
    )  # fmt: skip
    return module, found.quantised.quantisation


def kept_in(module):
    return [part for part in module.modules() if isinstance(part, StoredLinear)]


def test_no_floats_of_a_matrix_are_held(checkpoint):
    kept, _ = loaded(checkpoint, keeps_matrices=True)
    floats, _ = loaded(checkpoint, keeps_matrices=False)
    assert len(kept_in(kept)) == MATRICES
    assert all(part.stored is not None for part in kept_in(kept))
    held = sum(each.untyped_storage().nbytes() for each in kept.parameters())
    assert held < 0.5 * sum(each.nbytes for each in floats.parameters())
    with torch.inference_mode():
        made, wanted = (each(torch.tensor([PROMPT])).logits for each in (kept, floats))
    torch.testing.assert_close(made, wanted)


def test_the_matrices_are_packed_and_compared(checkpoint):
    module, quantisation = loaded(checkpoint, keeps_matrices=True)
    plan = BuildPlan(
        SdpaBackend, HostBuffers(CPU, 1), max_model_len=64, fuse=True, skip_check=False, quantisation=quantisation
    )  # fmt: skip
    model = build(module, plan)
    # Those of one input are one, unless their columns are in orders of their own.
    assert len(model.quantised_layers) in {2 * 4, MATRICES}
    assert all(part.stored is None for part in kept_in(module))


def test_they_become_floats_where_no_kernel_multiplies_them(checkpoint):
    kept, quantisation = loaded(checkpoint, keeps_matrices=True)
    floats, _ = loaded(checkpoint, keeps_matrices=False)
    model = SimpleNamespace(
        module=kept, device=torch.device("meta"), matrix_kernels=None, forward=None
    )
    with pytest.raises(NotUsed, match="there are no kernels for quantised matrices"):
        Quantise().apply(model, SimpleNamespace(quantisation=quantisation), None)
    for name, wanted in floats.state_dict().items():
        torch.testing.assert_close(kept.state_dict()[name], wanted)

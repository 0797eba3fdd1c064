"""Processors without instructions for products of bytes, simulated by ATEN_CPU_CAPABILITY and step kernels of another
instruction set: quantised models run there, with the same answers except for rounding.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from quantised_answers import answers
from quantised_models import model_folder

from tenonry_kernels_cpu.library import LibraryError, instruction_sets
from tenonry_quantisations.layers import layer_for
from tenonry_quantisations.rounding import rounded
from tenonry_quantisations.rounding4 import rounded4

TESTS = Path(__file__).parent
ERROR = 0.03  # relative (L2): inputs are rounded to 8 bits by kernels, and not where torch computes
RUN = """
import json, logging, sys
sys.path.insert(0, sys.argv[1])
from quantised_answers import answers
import tenonry_quantisations.linear8 as linear8
assert not linear8.multiplies_bytes()
if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    found, tokens = answers(sys.argv[2], **json.loads(sys.argv[3]))
    print(json.dumps([found.tolist(), tokens]))
"""


def has_avx2() -> bool:
    try:
        return "avx2" in instruction_sets()
    except LibraryError:
        return False


def without_products(folder: Path, kernels: str, **settings):
    """`answers` in a process whose torch uses AVX2 at most; and its log."""
    worker = {"name": "torch", "options": {"step_kernels": kernels}}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            RUN,
            str(TESTS),
            str(folder),
            json.dumps(settings | {"worker": worker}),
        ],
        env=os.environ | {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found, tokens = json.loads(done.stdout)
    return torch.tensor(found), tokens, done.stderr


@pytest.mark.nightly
@pytest.mark.skipif(not has_avx2(), reason="no library was built, or the processor has no AVX2")
def test_int8_runs_on_processors_that_do_not_multiply_bytes(tmp_path):
    model_folder(tmp_path)
    kernels = f"{TESTS / 'avx2_kernels.py'}:Avx2"
    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(without_products, tmp_path, kernels, quantization="int8")
        wanted, tokens = answers(tmp_path, quantization="int8")
        found, others, said = elsewhere.result()
    assert float((found - wanted).norm() / wanted.norm()) < ERROR
    assert others == tokens
    assert "(avx2)" in said
    assert "; linear, any rows: 2 × 128×64 of 8 bits" in said


@pytest.mark.parametrize("bits", [4, 8])
def test_torch_multiplies_floats_where_it_cannot_multiply_bytes(bits, monkeypatch):
    """As over several ranks, and without step kernels."""
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    matrix = torch.randn(48, 96, generator=torch.Generator().manual_seed(3))
    weight = (rounded4 if bits == 4 else rounded)(matrix)
    layer = layer_for(weight, torch.ones(48), torch.float32)
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(4))
    wanted = x.double() @ weight.dequantised().double().T + 1
    torch.testing.assert_close(layer(x).double(), wanted, rtol=1e-5, atol=1e-4)
    assert layer(x[:0]).shape == (0, 48)

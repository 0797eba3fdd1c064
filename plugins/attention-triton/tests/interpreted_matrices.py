"""Products with quantised matrices in Triton's interpreter against float64: prints a JSON object, case → error."""

from __future__ import annotations

import json

import torch
from cases import MATRICES

from tenonry_attention_triton.matrices import FEW_ROWS, FewRowsLinear, TritonMatrices
from tenonry_torch_base.quantisations import QuantisedWeight

CPU = torch.device("cpu")


def matrix(bits, outputs, inputs, groups, *, zeros=False, mixed=False, floats=False):
    scales = torch.rand(outputs, groups) + 0.1
    if floats:
        values = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
    else:
        most = 1 << (bits - 1)
        values = torch.randint(-most, most, (outputs, inputs)).to(torch.int8)
    return QuantisedWeight(
        bits=bits, values=values, scales=scales,
        zeros=torch.randn(outputs, groups) * 3 if zeros else None,
        group_of=torch.randperm(inputs) % groups if mixed else None,
    )  # fmt: skip


def error_of(rows, given, has_bias, dtype):
    dtype = getattr(torch, dtype)
    weight = matrix(**given)
    bias = torch.randn(given["outputs"]).to(dtype) if has_bias else None
    layer = TritonMatrices(CPU, torch.float16).layer(weight, bias)
    assert isinstance(layer, FewRowsLinear)
    x = torch.randn(rows, given["inputs"]).to(dtype)
    wanted = x.double() @ weight.dequantised(torch.float64).t()
    if bias is not None:
        wanted += bias.double()
    made = layer(x)
    assert made.dtype == dtype
    many = layer(x.repeat(FEW_ROWS // rows + 1, 1))[:rows]  # by torch, over the same memory
    assert float((many.double() - wanted).norm() / wanted.norm()) < 2e-3
    return float((made.double() - wanted).norm() / wanted.norm())


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps({name: error_of(*case) for name, case in MATRICES.items()}))

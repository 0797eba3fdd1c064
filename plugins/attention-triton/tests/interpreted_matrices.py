"""Products with quantised matrices in Triton's interpreter against float64: prints a JSON object, case → error.

"scaled": products in fp8 by torch, of rows that a kernel rounds: whether they are as they should be.
"""

from __future__ import annotations

import json

import torch
from cases import MATRICES

from tenonry_attention_triton.launch_matrices import MANY, rounded_rows
from tenonry_attention_triton.matrices import PackedLinear, ScaledLinear, TritonMatrices
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
    assert isinstance(layer, PackedLinear)
    x = torch.randn(rows, given["inputs"]).to(dtype)
    wanted = x.double() @ weight.dequantised(torch.float64).t()
    if bias is not None:
        wanted += bias.double()
    made = layer(x)
    assert made.dtype == dtype
    many = layer(x.repeat(MANY // rows + 1, 1))[:rows]  # in larger tiles
    torch.testing.assert_close(many, made, rtol=1e-3, atol=1e-3)
    return float((made.double() - wanted).norm() / wanted.norm())


def scaled(rows, has_bias):
    """Rows as torch rounds them; the product of these; one that is close to the product in float64."""
    weight = matrix(8, 64, 128, 1, floats=True)
    bias = torch.randn(64).bfloat16() if has_bias else None
    layer = TritonMatrices(CPU, torch.bfloat16).layer(weight, bias)
    assert isinstance(layer, ScaledLinear)
    x = torch.randn(rows, 128).bfloat16()
    x[rows // 2 :] *= 100
    rounded, scale = rounded_rows(x)
    wanted_scale = x.abs().amax(1, keepdim=True).float() / 448
    near = (x / wanted_scale).to(torch.float8_e4m3fn)
    made = layer(x)
    assert made.dtype == torch.bfloat16
    added = 0 if bias is None else bias.double()
    right = torch.equal(scale, wanted_scale) and torch.equal(rounded.float(), near.float())
    right &= torch.equal(made[:1], layer(x[:1]))  # a row depends on no other
    for inputs, limit in ((near.double() * scale, 0.005), (x.double(), 0.05)):
        wanted = inputs @ weight.dequantised(torch.float64).t() + added
        right &= float((made.double() - wanted).norm() / wanted.norm()) < limit
    x[0, 3] = float("nan")
    return right and bool(layer(x)[0].isnan().all())


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = {name: error_of(*case) for name, case in MATRICES.items()}
    found["scaled"] = [scaled(rows, has_bias) for rows in (1, 5, 130) for has_bias in (False, True)]
    print(json.dumps(found))

"""A model that computes NaN is refused with the weights that cause it."""

from __future__ import annotations

import pytest
import torch

from tenonry_torch_base.finite import NotFiniteError, is_finite, require_finite

NAN = float("nan")
INF = float("inf")


def model(**layers):
    module = torch.nn.Sequential()
    for name, value in layers.items():
        linear = torch.nn.Linear(2, 2)
        with torch.no_grad():
            linear.weight.fill_(1.0)
            linear.weight[0, 0] = value
            linear.bias.zero_()
        module.add_module(name, linear)
    return module


def refusal(module, made=(NAN,), dtype=torch.float32):
    with pytest.raises(NotFiniteError) as caught:
        require_finite(module, torch.tensor(made, dtype=dtype))
    return str(caught.value)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_names_the_damaged_tensor(value):
    text = refusal(model(first=1.0, second=value))
    assert "second.weight (1 of 4 values)" in text
    assert "first" not in text
    assert "damaged" in text


def test_names_a_few_of_many():
    text = refusal(model(**{f"layer{number}": NAN for number in range(9)}))
    assert text.count(".weight") == 3
    assert "…" in text


def test_a_mask_is_not_damaged():
    module = model(only=1.0)
    module.register_buffer("mask", torch.tensor([0.0, -INF]))
    assert "mask" not in refusal(module)
    module.register_buffer("scale", torch.tensor([NAN]))
    assert "scale (1 of 1 values)" in refusal(module)


def test_weights_in_8_bits():
    module = model(only=1.0)
    bits = torch.full((4,), NAN).to(torch.float8_e4m3fn)
    module.register_parameter("few", torch.nn.Parameter(bits, requires_grad=False))
    assert "few (4 of 4 values)" in refusal(module)


def test_overflow_in_half_precision():
    assert "--dtype bfloat16" in refusal(model(only=1.0), (INF,), torch.float16)
    assert "--dtype" not in refusal(model(only=1.0))


@pytest.mark.parametrize("made", [[0.0, -INF], [-1e30, 1e30]])
def test_finite_logits(made):
    assert is_finite(torch.tensor(made))
    require_finite(model(only=NAN), torch.tensor(made))

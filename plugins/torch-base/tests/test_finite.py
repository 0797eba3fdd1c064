"""A model that computes NaN is rejected, naming the responsible weights."""

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


def test_warns_of_weights_that_only_some_tokens_read(caplog):
    module = model(only=1.0, routed_experts=1.0)
    table = torch.nn.Embedding(4, 2)
    with torch.no_grad():
        table.weight[3, 1] = NAN
        module.routed_experts.bias[0] = -INF
    module.add_module("table", table)
    module.register_parameter("stacked", torch.nn.Parameter(torch.full((2, 1, 2), INF)))
    require_finite(module, torch.zeros(2))
    for words in ("table.weight (1 of 8", "routed_experts.bias (1 of 2", "stacked (4 of 4"):
        assert words in caplog.text


def test_sound_weights_are_not_named(caplog):
    module = model(only=65504.0)  # sums of float16 overflow
    module.add_module("table", torch.nn.Embedding.from_pretrained(torch.full((9, 2), 60000.0)))
    require_finite(module.half(), torch.zeros(2))
    assert not caplog.text

"""The conformance suite of quantisations, made at load and stored, and the packed size."""

from __future__ import annotations

import pytest
import torch
from tenonry_testkit.quantisation import QuantisationContract, StoredExample

from six_bits.plugin import pack, unpack


class TestAtLoad(QuantisationContract):
    quantisation = "six_bits.plugin:SixBits"


class TestStored(QuantisationContract):
    quantisation = "six_bits.plugin:SixBits"

    def stored(self) -> StoredExample:
        values = torch.arange(-24, 24).view(4, 12).to(torch.int8)
        scales = torch.tensor([[0.5], [1.0], [2.0], [4.0]])
        config = {"quant_method": "six"}
        tensors = {"six_values": values, "six_scales": scales}
        return StoredExample(config, tensors, values * scales, ("six_values", "six_scales"))


@pytest.mark.parametrize("columns", [1, 4, 6, 64])
def test_four_weights_take_three_bytes(columns: int) -> None:
    values = (torch.arange(3 * columns) % 63 - 31).view(3, columns).to(torch.int8)
    packed = pack(values)
    assert packed.numel() == 3 * 3 * -(-columns // 4)
    assert torch.equal(unpack(packed, columns), values)

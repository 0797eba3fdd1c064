"""K and V in 8 bits against the formulas, number by number, and that each vector stays in its place."""

from __future__ import annotations

import kept_vectors
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tenonry_torch_base.attention.base import LayerSpec, refusal_of
from tenonry_torch_base.attention.kv_storage import STORAGES
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend

FEW = ["int8", "fp8"]
LARGEST = float(np.finfo(np.float32).max)
BLOCKS, VECTORS, SLOTS, SIZE = 5, 4, 8, 6
VALUES = st.one_of(
    st.floats(-4, 4, width=32),
    st.floats(-LARGEST, LARGEST, width=32),
    st.sampled_from([0.0, -0.0, 1e-40, LARGEST, -LARGEST, 0.5, 63.5]),
)
MATRICES = arrays.arrays(np.float32, st.tuples(st.just(3), st.integers(1, 40)), elements=VALUES)


def kept(vectors, kind, dtype=torch.float32):
    """`vectors` through a storage and back."""
    storage = STORAGES[kind](dtype)
    given = torch.from_numpy(vectors).to(dtype)
    return storage.unpacked(storage.packed(given), torch.empty_like(given))


@pytest.mark.parametrize("kind", FEW)
@settings(deadline=None)
@given(vectors=MATRICES)
@pytest.mark.slow
def test_numbers_are_rounded_as_the_formula_says(kind, vectors):
    found = kept(vectors, kind).double().numpy()
    np.testing.assert_array_equal(found, kept_vectors.rounded(vectors, kind))


@settings(deadline=None)
@given(vectors=MATRICES)
def test_an_error_is_half_a_scale_at_most(vectors):
    error = np.abs(kept(vectors, "int8").double().numpy() - vectors.astype(np.float64))
    assert (error <= kept_vectors.scales(vectors, "int8") * np.float64(0.5 + 1e-5)).all()


@settings(deadline=None)
@given(vectors=MATRICES)
def test_an_error_in_floats_of_8_bits_is_a_sixteenth_at_most(vectors):
    error = np.abs(kept(vectors, "fp8").double().numpy() - vectors.astype(np.float64))
    scale = kept_vectors.scales(vectors, "fp8").astype(np.float64)
    assert (error <= np.abs(vectors.astype(np.float64)) / 16 + scale / 1023).all()


@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_products_are_rounded_once(kind, dtype):
    torch.manual_seed(0)
    vectors = (torch.randn(64, 32) * torch.logspace(-6, 3, 64)[:, None]).to(dtype)
    wanted = torch.from_numpy(kept_vectors.rounded(vectors.float().numpy(), kind)).to(dtype)
    found = kept(vectors.float().numpy(), kind, dtype)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_makes_the_whole_vector_none(kind, odd):
    vectors = np.ones((2, 5), np.float32)
    vectors[1, 3] = odd
    found = kept(vectors, kind)
    assert not found[1].isfinite().any()
    assert found[0].isfinite().all()


@pytest.mark.parametrize("kind", FEW)
def test_zeros_stay_zeros_and_so_do_bytes_of_zero(kind):
    storage = STORAGES[kind](torch.float32)
    assert not kept(np.zeros((2, 7), np.float32), kind).any()
    nothing = torch.zeros(2, storage.width(7), dtype=torch.uint8)
    assert not storage.unpacked(nothing, torch.ones(2, 7)).any()


@pytest.mark.parametrize("kind", STORAGES)
def test_vectors_are_written_where_they_belong_and_nowhere_else(kind):
    storage = STORAGES[kind](torch.float32)
    cache = torch.full((BLOCKS, VECTORS, SLOTS, storage.width(SIZE)), 1, dtype=storage.kept_dtype)
    before = cache.clone()
    new = torch.randn(2, VECTORS, SIZE)
    places = [(3, 1), (0, 7)]  # block and slot of each token
    lines = [(block * VECTORS + c) * SLOTS + slot for block, slot in places for c in range(VECTORS)]
    back = storage.write(cache, torch.tensor(lines), new)
    wanted = kept_vectors.rounded(new.numpy(), kind)
    np.testing.assert_array_equal(back.double().numpy(), wanted)
    for number, (block, slot) in enumerate(places):
        whole = storage.read(cache, torch.arange(VECTORS) + block * VECTORS, SLOTS, SIZE)
        found = whole.view(VECTORS, SLOTS, SIZE)[:, slot]
        np.testing.assert_array_equal(found.double().numpy(), wanted[number])
        cache[block, :, slot] = before[block, :, slot]
    assert torch.equal(cache, before)


@pytest.mark.parametrize("kind", STORAGES)
def test_parts_of_blocks_are_read_into_a_tensor(kind):
    storage = STORAGES[kind](torch.float32)
    cache = torch.zeros(BLOCKS, VECTORS, SLOTS, storage.width(SIZE), dtype=storage.kept_dtype)
    every = torch.randn(BLOCKS * SLOTS, VECTORS, SIZE)
    block, slot = np.divmod(np.arange(BLOCKS * SLOTS), SLOTS)
    lines = (block[:, None] * VECTORS + np.arange(VECTORS)) * SLOTS + slot[:, None]
    kept_every = storage.write(cache, torch.from_numpy(lines.reshape(-1)), every)
    out = torch.empty(2, 4 * SIZE)
    half = 2 * (3 * VECTORS + 2) + 1  # the second half of vector 2 of block 3
    storage.read(cache, torch.tensor([half, 0]), 4, SIZE, out=out)
    torch.testing.assert_close(out[0].view(4, SIZE), kept_every[28:32, 2], rtol=0, atol=0)
    torch.testing.assert_close(out[1].view(4, SIZE), kept_every[:4, 0], rtol=0, atol=0)


def test_bytes_of_a_token():
    """A byte per number, and two for the scale of each vector; an odd vector gets one more."""
    spec = LayerSpec(
        name="a", index=0, num_heads=4, num_kv_heads=2, key_size=64, value_size=5, scaling=1.0
    )
    for kind in FEW:
        assert spec.kept_bytes(STORAGES[kind](torch.bfloat16)) == 2 * (66 + 8)
    assert spec.kept_bytes(STORAGES["auto"](torch.bfloat16)) == 2 * (64 + 5) * 2


class Changed(SdpaBackend):
    """Reads K/V differently, without declaring its features."""

    name = "changed"


@pytest.mark.parametrize("kind", FEW)
class TestRefusals:
    ENDING = "leave --kv-cache-dtype out"

    def reason(self, kind, backend, *layers):
        cpu = torch.device("cpu")
        reason = refusal_of(backend, layers, torch.float32, cpu, STORAGES[kind])
        assert reason is None or reason.startswith(f"kv_cache_dtype={kind}: ")
        assert reason is None or reason.endswith(self.ENDING)
        return reason

    def layer(self, **fields):
        size = {"num_heads": 2, "num_kv_heads": 2, "key_size": 4, "value_size": 4}
        return LayerSpec(name="layers.3", index=3, scaling=1.0, **size, **fields)

    @pytest.mark.parametrize("backend", [SdpaBackend, CpuBackend])
    def test_what_our_backends_cannot_keep_so(self, kind, backend):
        assert self.reason(kind, backend, self.layer()) is None
        assert "layer layers.3 sees keys that others choose" in self.reason(
            kind, backend, self.layer(indexed=True)
        )
        assert "no K and V" in self.reason(kind, backend)

    def test_a_backend_that_does_not_say_it_can(self, kind):
        assert "in the type of the model only" in self.reason(kind, Changed, self.layer())
        assert refusal_of(Changed, [self.layer()], torch.float32, torch.device("cpu")) is None

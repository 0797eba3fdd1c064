"""The bytes of blocks as a KV connector sees them: the same for every layout in memory, and each in its place."""

from __future__ import annotations

import pytest
import torch

from tenonry_torch_base.attention.base import LayerCache, LayerSpec
from tenonry_torch_base.attention.kv_storage import STORAGES
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_worker_torch.connector import CacheBlocks

BLOCKS = 7


def tensor(heads, size, dtype, number):
    generator = torch.Generator().manual_seed(number)
    values = torch.randn(BLOCKS, heads, 4, size, generator=generator)
    return values.to(dtype)


def caches(dtype):
    """A layer with K and V together, one with V of another size, and one with keys alone."""
    both = tensor(4, 8, dtype, 1)
    return [
        LayerCache(*both.chunk(2, 1), both),
        LayerCache(tensor(2, 8, dtype, 2), tensor(2, 6, dtype, 3)),
        LayerCache(tensor(1, 16, dtype, 4), tensor(1, 0, dtype, 5)),
    ]


def scattered(tensor):
    """The same values where the bytes of a block do not lie together."""
    return tensor.transpose(0, 2).contiguous().transpose(0, 2)


def elsewhere(caches):
    found = []
    for cache in caches:
        if cache.both is None:
            found.append(LayerCache(scattered(cache.key), scattered(cache.value)))
        else:
            both = scattered(cache.both)
            found.append(LayerCache(*both.chunk(2, 1), both))
    return found


def content(caches, block):
    parts = [
        part
        for cache in caches
        for part in ([cache.key, cache.value] if cache.both is None else [cache.both])
    ]
    return b"".join(part[block].contiguous().view(torch.uint8).numpy().tobytes() for part in parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [list, elsewhere])
def test_blocks_are_read_layer_by_layer(dtype, layout):
    held = caches(dtype)
    read = CacheBlocks(layout(held)).read([5, 0, 5])
    assert read == [content(held, 5), content(held, 0), content(held, 5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [list, elsewhere])
def test_blocks_are_written_where_they_belong_and_nowhere_else(dtype, layout):
    held = layout(caches(dtype))
    before = [content(held, block) for block in range(BLOCKS)]
    blocks = CacheBlocks(held)
    blocks.write([3, 6], [before[1], before[2]])
    wanted = [*before[:3], before[1], *before[4:6], before[2]]
    assert [content(held, block) for block in range(BLOCKS)] == wanted
    assert blocks.read(range(BLOCKS)) == wanted


@pytest.mark.parametrize("layout", [list, elsewhere])
def test_what_is_not_the_size_of_a_block_changes_none(layout):
    held = layout(caches(torch.float32))
    blocks = CacheBlocks(held)
    before = blocks.read(range(BLOCKS))
    with pytest.raises(
        ValueError, match=f"{len(before[0]) - 1} bytes for a KV block of {len(before[0])}"
    ):
        blocks.write([1, 2], [before[3], before[4][:-1]])
    with pytest.raises(ValueError, match="1 contents for 2 blocks"):
        blocks.write([1, 2], [before[3]])
    assert blocks.read(range(BLOCKS)) == before


def test_tensors_are_looked_at_in_each_call():
    """There are others after a sleep."""
    held = caches(torch.float32)
    blocks = CacheBlocks(held)
    (first,) = blocks.read([2])
    held[:] = elsewhere(held)
    held[0].both.zero_()
    assert blocks.read([2]) == [content(held, 2)] != [first]


@pytest.mark.parametrize("kept", ["int8", "fp8"])
def test_blocks_in_8_bits_carry_their_scales(kept):
    """A block read into another cache equals the written one, to the bit."""
    spec = LayerSpec(
        name="a", index=0, num_heads=2, num_kv_heads=2, key_size=6, value_size=6, scaling=1.0
    )
    storage = STORAGES[kept](torch.float32)
    backend = SdpaBackend([spec], torch.float32, torch.device("cpu"))
    backend.keep_in(storage)
    source, target = (backend.allocate(BLOCKS, 4)["a"] for _ in range(2))
    tokens = torch.randn(8, 4, 6)
    lines = torch.arange(2 * 4 * 4).view(2, 4, 4).transpose(1, 2).reshape(-1)  # blocks 0 and 1
    seen = storage.write(source.both, lines, tokens)
    contents = CacheBlocks([source]).read([0, 1])
    assert [len(content) for content in contents] == [4 * spec.kept_bytes(storage)] * 2
    CacheBlocks([target]).write([5, 2], contents)
    places = torch.tensor([5 * 4, 2 * 4])[:, None] + torch.arange(4)
    found = storage.read(target.both, places.view(-1), 4, 6).view(2, 4, 4, 6)
    assert torch.equal(found.transpose(1, 2).reshape(8, 4, 6), seen)

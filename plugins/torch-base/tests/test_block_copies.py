"""Copies of blocks beside running steps: in pieces, and in order on streams that record what precedes their work."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tenonry_testkit.fakes.cuda import FakeCuda
from tenonry_torch_base import block_copies
from tenonry_torch_base.block_copies import BlockCopies, SideStream

CPU = torch.device("cpu")
BLOCKS = 12


def tensors():
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 4, 8), (2, 4, 0), (1, 5))
    return [
        torch.randn(BLOCKS, *shape, generator=generator, dtype=dtype)
        for shape, dtype in zip(shapes, (torch.float32, torch.bfloat16, torch.float16), strict=True)
    ]


def content(held, block):
    return b"".join(
        each[block].contiguous().view(-1).view(torch.uint8).numpy().tobytes() for each in held
    )


@pytest.mark.parametrize("in_piece", [1, 3, 100])
def test_blocks_move_in_pieces(monkeypatch, in_piece):
    held = tensors()
    size = sum(map(block_copies.block_bytes, held))
    monkeypatch.setattr(block_copies, "PIECE_BYTES", in_piece * size)
    copies = BlockCopies(CPU)
    ids = [7, 0, 3, 3, 11, 5, 1]
    wanted = [content(held, block) for block in range(BLOCKS)]
    assert copies.read(held, ids) == [wanted[block] for block in ids]
    copies.write(held, [2, 9, 4, 8], [wanted[block] for block in (0, 1, 2, 3)])
    for block, source in ((2, 0), (9, 1), (4, 2), (8, 3)):
        wanted[block] = wanted[source] if source != 2 else wanted[4]
    assert copies.read(held, [2, 9, 8]) == [wanted[block] for block in (2, 9, 8)]
    assert copies.read(held, []) == []


class Recorder(SideStream):
    """Records the work before each copy, and what the host knows when it reads or fills pinned memory."""

    def __init__(self, cuda):
        super().__init__(CPU)
        self.cuda, self.copies, self.waits = cuda, [], []

    def launched(self, piece):
        work = ("copy", len(self.copies))
        self.copies.append((piece, self._copies.run(work)))
        super().launched(piece)

    def wait(self, piece):
        super().wait(piece)
        self.waits.append((piece, set(self.cuda.host)))


@pytest.fixture
def cuda(monkeypatch):
    """Its `compute` is the stream of the steps."""
    fake = FakeCuda()
    for name in FakeCuda.NAMES:
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


@pytest.fixture
def small_pieces(monkeypatch):
    size = sum(map(block_copies.block_bytes, tensors()))
    monkeypatch.setattr(block_copies, "PIECE_BYTES", 2 * size)


@pytest.mark.usefixtures("small_pieces")
def test_reads_follow_launched_steps_and_no_step_waits_for_them(cuda):
    order = Recorder(cuda)
    copies = BlockCopies(CPU, order)
    cuda.compute.run("step 1")
    copies.read(tensors(), range(5))
    assert len(order.copies) == 3
    assert all("step 1" in before for _, before in order.copies)
    assert cuda.compute.run("step 2") == {"step 1"}


@pytest.mark.usefixtures("small_pieces")
def test_the_host_reads_pinned_memory_after_the_copy_into_it(cuda):
    order = Recorder(cuda)
    BlockCopies(CPU, order).read(tensors(), range(7))
    read = order.waits[-len(order.copies) :]
    assert [piece for piece, _ in read] == [piece for piece, _ in order.copies] == [0, 1, 0, 1]
    for number, (_, host) in enumerate(read):
        assert ("copy", number) in host
    # While a piece is taken apart, the next one moves.
    assert ("copy", 1) not in read[0][1]


@pytest.mark.usefixtures("small_pieces")
def test_writes_follow_launched_steps_and_precede_later_ones(cuda):
    order = Recorder(cuda)
    copies = BlockCopies(CPU, order)
    held = tensors()
    size = sum(map(block_copies.block_bytes, held))
    cuda.compute.run("step 1")
    copies.write(held, range(7), [bytes(size)] * 7)
    assert all("step 1" in before for _, before in order.copies)
    assert cuda.compute.run("step 2") >= {("copy", number) for number in range(4)}
    filled = order.waits[-4:]
    for number, (_, host) in enumerate(filled):
        assert number < 2 or ("copy", number - 2) in host


def test_pinned_memory_grows_with_the_largest_call():
    copies = BlockCopies(CPU)
    held = [torch.zeros(4, 3, dtype=torch.uint8)]
    assert copies.read(held, [1]) == [bytes(3)]
    other = [torch.arange(4 * 50, dtype=torch.uint8).view(4, 50)]
    assert copies.read(other, [0, 3]) == [
        np.arange(50, dtype=np.uint8).tobytes(),
        np.arange(150, 200, dtype=np.uint8).tobytes(),
    ]
    assert math.prod(other[0].shape) == 200

"""Reads a checkpoint's bytes into the page cache in parallel, before they are mapped one by one. Worker process.

Mapped files are read a page at a time, by one thread, when a weight is first used. Files that are in the page cache
already cost a few system calls here and no reading.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from tenonry_torch_base.memory import host_memory

if TYPE_CHECKING:
    from pathlib import Path

    from tenonry_torch_base.checkpoint import Checkpoint

logger = logging.getLogger("tenonry.worker")

PIECE_BYTES = 16 << 20
READERS = 8
REPORT_S = 5.0


class Piece(NamedTuple):
    """Bytes `begin` to `end` of a file."""

    file: Path
    begin: int
    end: int


def read_ahead(checkpoint: Checkpoint, rank: int = 0, num_ranks: int = 1) -> int:
    """Read the pieces that are not in the page cache; returns their bytes. Ranks of a node share them out piece by
    piece.

    Nothing is read if the system does not report cached pages, or if memory cannot hold the files. Raises OSError.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return 0
    missing = [piece for piece in pieces_of(checkpoint)[rank::num_ranks] if not is_cached(piece)]
    total = sum(piece.end - piece.begin for piece in missing)
    if total == 0 or total > host_memory():
        return 0
    progress = Progress(total, len(checkpoint.files))
    with ThreadPoolExecutor(min(READERS, len(missing))) as readers:
        for count in readers.map(read_piece, missing):
            progress.add(count)
    progress.end()
    return total


def pieces_of(checkpoint: Checkpoint) -> list[Piece]:
    """The parts of the files that hold the model's tensors; neighbours are read together."""
    spans: dict[Path, list[tuple[int, int]]] = {}
    for tensor in checkpoint.pieces:
        spans.setdefault(tensor.file, []).append((tensor.begin, tensor.end))
    found = []
    for file in sorted(spans):
        for begin, end in _joined(sorted(spans[file])):
            found += [
                Piece(file, start, min(start + PIECE_BYTES, end))
                for start in range(begin, end, PIECE_BYTES)
            ]
    return found


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge adjacent spans, in order."""
    joined: list[tuple[int, int]] = []
    for begin, end in spans:
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def is_cached(piece: Piece) -> bool:
    """Return True if the first and the last byte can be read without waiting for the disk."""
    descriptor = os.open(piece.file, os.O_RDONLY)
    try:
        for place in (piece.begin, piece.end - 1):
            try:
                os.preadv(descriptor, [bytearray(1)], place, os.RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError:  # a file system without this question: its own cache is trusted
                return True
    finally:
        os.close(descriptor)
    return True


def read_piece(piece: Piece) -> int:
    """Read it, and forget it: it stays in the page cache. Returns the number of bytes."""
    buffer = bytearray(piece.end - piece.begin)
    descriptor = os.open(piece.file, os.O_RDONLY)
    try:
        return os.preadv(descriptor, [buffer], piece.begin)
    finally:
        os.close(descriptor)


class Progress:
    """One line on a terminal, or a line in the log every few seconds."""

    def __init__(self, total: int, num_files: int) -> None:
        self._total = total
        self._files = num_files
        self._done = 0
        self._started = time.monotonic()
        self._reported = self._started
        self._terminal = sys.stderr.isatty()
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count `count` more bytes."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            if self._terminal:
                sys.stderr.write(f"\r{self.text(now)}")
                sys.stderr.flush()
            elif now - self._reported >= REPORT_S:
                self._reported = now
                logger.info("%s", self.text(now))

    def end(self) -> None:
        """The line is complete."""
        if self._terminal:
            sys.stderr.write("\n")
        else:
            logger.info("%s", self.text(time.monotonic()))

    def text(self, now: float) -> str:
        """Progress line: bytes read, total, and rate."""
        rate = self._done / max(now - self._started, 1e-3)
        return (
            f"reading weights: {self._done / 1e9:.2f} of {self._total / 1e9:.2f} GB from {self._files} files, "
            f"{rate / 1e9:.2f} GB/s"
        )

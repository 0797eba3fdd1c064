"""Prefixed lines of a child's standard streams, including output of native code. Parent's and child's process."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator

CHUNK_BYTES = 1 << 16
# Standard output and error of this process at its start. Those of its children go there, with their own prefix.
TARGETS = [1, 2]


def redirect(pipes: Iterable[int]) -> None:
    """Replace standard output and error of this process by these pipes, which its parent reads."""
    for place, (pipe, stream) in enumerate(zip(pipes, (sys.stdout, sys.stderr), strict=False)):
        number = place + 1
        TARGETS[place] = os.dup(number)
        os.dup2(pipe, number)
        os.close(pipe)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def copy_lines(source: int, target: int, prefix: Callable[[], str]) -> threading.Thread:
    """Copy until no process holds the other end of the pipe `source`; returns the copying thread."""
    copier = threading.Thread(target=_copy, args=(source, target, prefix), daemon=True)
    copier.start()
    return copier


def _copy(source: int, target: int, prefix: Callable[[], str]) -> None:
    with open(source, "rb", buffering=0) as pipe:
        for text in prefixed(iter(lambda: pipe.read(CHUNK_BYTES), b""), prefix):
            with contextlib.suppress(OSError):  # nobody reads the output of this process
                left = text
                while left:
                    left = left[os.write(target, left) :]


def prefixed(pieces: Iterable[bytes], prefix: Callable[[], str]) -> Iterator[bytes]:
    """Yield lines with a prefix, unless they contain it already, as log lines do. Other processes write to the same
    file, so a line is withheld until its end, or the last piece.
    """
    rest = b""
    is_start = True
    for piece in itertools.chain(pieces, [b""]):
        lines = (rest + piece).splitlines(keepends=True)
        rest = b""
        if piece and not lines[-1].endswith((b"\n", b"\r")) and len(lines[-1]) < CHUNK_BYTES:
            rest = lines.pop()
        mark = prefix().encode()
        marked = b""
        for line in lines:
            marked += mark + line if is_start and mark not in line else line
            is_start = line.endswith(b"\n")
        yield marked

"""The blocks of one rank in files: reads them, and leaves the writing to a thread. Worker process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tenonry_kv_connectors.disk.block_file import BlockFormat
from tenonry_kv_connectors.disk.folder import BlockFolder
from tenonry_kv_connectors.disk.writer import DiskWriter, touch


class DiskStore:
    """Reading counts as use. What is not whole is removed, and counts as missing."""

    def __init__(self, folder: BlockFolder, rank: int, layout: str, writer: DiskWriter) -> None:
        self._folder = folder
        self._rank = rank
        self._format = BlockFormat(layout)
        self._writer = writer

    def wants(self, name: bytes) -> bool:
        return self._writer.wants(self._folder.path(name, self._rank))

    def write(self, name: bytes, data: bytes) -> None:
        header = self._format.header(name, data)
        self._writer.put(self._folder.path(name, self._rank), header, data)

    def read(self, name: bytes) -> bytes | None:
        path = self._folder.path(name, self._rank)
        staged = self._writer.staged(path)
        if staged is not None:
            return staged
        return read_block(path, name, self._format)

    def follow(self, orders: Any) -> None:
        """There are none."""

    def close(self) -> None:
        self._writer.close()


def read_block(path: Path, name: bytes, block_format: BlockFormat) -> bytes | None:
    """The content of a file, or None if it is not there, or not whole; then it is removed."""
    if not path.is_file():
        return None
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with os.fdopen(number, "rb") as file:
            header = file.read(block_format.header_bytes(name))
            size = os.fstat(number).st_size - len(header)
            if size == block_format.content_bytes(header):  # a larger file may not fit in memory
                content = file.read(size)
                if block_format.is_whole(name, header, content):
                    touch(number)
                    return content
    except (OSError, MemoryError):
        return None
    path.unlink(missing_ok=True)
    return None

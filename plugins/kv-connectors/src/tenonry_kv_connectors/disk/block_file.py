"""One block of one rank as a file: a header, and the bytes of the block. Worker process.

    magic (8 bytes) · version (u32) · length of the name (u32) · name · layout (32 bytes) · length of the content (u64)
    · checksum (16 bytes) · content

The checksum is BLAKE2b over everything before it and the content. A file that is not exactly this is no block.
"""

from __future__ import annotations

import hashlib
import struct

MAGIC = b"tenonrKV"
VERSION = 1
CHECKSUM_BYTES = 16
LAYOUT_BYTES = 32
_START = struct.Struct("<8sII")
_LENGTH = struct.Struct("<Q")


class BlockFormat:
    """Headers for blocks with the format `layout` (`BlockStore.layout`)."""

    def __init__(self, layout: str) -> None:
        self._layout = hashlib.blake2b(layout.encode(), digest_size=LAYOUT_BYTES).digest()

    def header(self, name: bytes, content: bytes) -> bytes:
        """The header, which precedes the content."""
        start = _START.pack(MAGIC, VERSION, len(name)) + name + self._layout
        start += _LENGTH.pack(len(content))
        return start + _checksum(start, content)

    def header_bytes(self, name: bytes) -> int:
        """The size of a header."""
        return _START.size + len(name) + LAYOUT_BYTES + _LENGTH.size + CHECKSUM_BYTES

    def content_bytes(self, header: bytes) -> int:
        """The size of the content, as a header has it; −1 of less than a header."""
        if len(header) < LAYOUT_BYTES + _LENGTH.size + CHECKSUM_BYTES:
            return -1
        found: int = _LENGTH.unpack_from(header, len(header) - CHECKSUM_BYTES - _LENGTH.size)[0]
        return found

    def is_whole(self, name: bytes, header: bytes, content: bytes) -> bool:
        """Return True if header and content were written for this name in this layout and are unchanged."""
        return header == self.header(name, content)


def _checksum(start: bytes, content: bytes) -> bytes:
    digest = hashlib.blake2b(start, digest_size=CHECKSUM_BYTES)
    digest.update(content)
    return digest.digest()

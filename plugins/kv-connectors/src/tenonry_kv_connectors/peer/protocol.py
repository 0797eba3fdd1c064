"""Messages between equal ranks of two engines: requests, responses, and blocks with a checksum. Worker process.

Every message is one frame of msgpack; a response's blocks follow as separate frames.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

CHECKSUM_BYTES = 16
PART_BLOCKS = 32  # in one answer


class Ask(msgspec.Struct, array_like=True, tag="ask"):
    """For the blocks of these digests, in the order in which they are to come."""

    id: int
    token: str
    number: int
    layout: bytes
    digests: list[bytes]


class Had(msgspec.Struct, array_like=True, tag="had"):
    """All of it arrived."""

    token: str


class Part(msgspec.Struct, array_like=True, tag="part"):
    """Blocks from `position` on, one per following frame."""

    id: int
    position: int
    checksum: bytes


class Refused(msgspec.Struct, array_like=True, tag="refused"):
    """The blocks do not come, and why not."""

    id: int
    reason: str


to_text = msgspec.msgpack.encode
read_ask = msgspec.msgpack.Decoder(Ask | Had).decode
read_answer = msgspec.msgpack.Decoder(Part | Refused).decode


def layout_digest(layout: str) -> bytes:
    """Names how the bytes of a block are laid out."""
    return hashlib.blake2b(layout.encode(), digest_size=CHECKSUM_BYTES).digest()


def checksum(digests: Sequence[bytes], blocks: Sequence[bytes]) -> bytes:
    """Over the blocks and their names, in order."""
    state = hashlib.blake2b(b"".join(digests), digest_size=CHECKSUM_BYTES)
    for block in blocks:
        state.update(block)
    return state.digest()

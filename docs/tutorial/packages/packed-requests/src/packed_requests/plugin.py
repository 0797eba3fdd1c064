"""Request codec `packed-requests`: compresses requests with media, for engines on other nodes. Any process."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from tenonry.interfaces.request_codec import Peer, RequestCodec
from tenonry.messages import EngineCoreRequest
from tenonry.transport.serial import Frame

PACKED = b"z"  # first frame of a compressed request; that of another is an array


class PackedRequests(RequestCodec):
    """Compresses the frames of requests with media. Others are sent as in the base class."""

    interface_version = 1

    def encode(self, request: EngineCoreRequest, peer: Peer) -> list[Frame]:
        frames = super().encode(request, peer)
        if request.media is None:
            return frames
        return [PACKED, *(zlib.compress(frame, 1) for frame in frames)]

    def decode(self, frames: Sequence[Any], client: int) -> EngineCoreRequest:
        if bytes(frames[0]) == PACKED:
            frames = [zlib.decompress(frame) for frame in frames[1:]]
        return super().decode(frames, client)

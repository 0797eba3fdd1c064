"""Images that an engine has are not sent to it again. Front end and engine processes.

A front end decides alone what an engine keeps of what it sent: each message says of every image whether its inputs come
with it, are to be kept, or are there already, and which ones to drop. Messages between the two keep their order, so
both know the same images; each front end and each engine are a pair of their own. A message of another generation makes
the engine forget first: a front end begins one when it starts, when it resets, and after an error, by which it learns
of anything that was lost. A request that named a lost image is then sent once more, with all of its images.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from tenonry.config import EngineConfig
from tenonry.errors import RequestError, WireError
from tenonry.features.checks import DIGEST_BYTES, HEADER
from tenonry.media import DIGESTS, SPANS, media_input
from tenonry.messages import EngineCoreOutputs, EngineCoreRequest, UtilityCall
from tenonry.outputs import FinishReason
from tenonry.transport.serial import Decoder, Encoder, Frame

DROPPED = f"{HEADER}.dropped"  # u8[M, 32]: digests that go
RESET = "reset_mm_cache"
LOST = "an image of the request is not kept by this engine; send the request again"  # both know it by this text
MIB = 1 << 20
# What a header says of an image.
SENT = 0
KEEP = 1
HELD = 2


class Peer(Protocol):
    """The link to one engine; another one of the same index is of an engine that started later.

    `requests` by handle: those that run there.
    """

    index: int
    requests: dict[int, EngineCoreRequest]


class SentImages:
    """What one engine keeps of this front end: at most `max_bytes`; images that were sent longest ago go first."""

    def __init__(self, peer: Peer, max_bytes: int) -> None:
        self.peer = peer
        self.sizes: OrderedDict[bytes, int] = OrderedDict()
        self._max_bytes = max_bytes
        self._generation = secrets.randbits(62)

    def reduced(self, features: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The features to send: without inputs that the engine has, and with what it is to do."""
        left = dict(features)
        header = [self._generation]
        for number, row in enumerate(features[DIGESTS]):
            digest = row.tobytes()
            inputs = inputs_of(features, number)
            header.append(self._use(digest, sum(array.nbytes for array in inputs.values())))
            if header[-1] == HELD:
                for name in inputs:
                    del left[media_input(number, name)]
        dropped = bytearray()
        while sum(self.sizes.values()) > self._max_bytes:
            digest, _ = self.sizes.popitem(last=False)
            dropped += digest
        left[HEADER] = np.array(header, np.int64)
        left[DROPPED] = np.frombuffer(dropped, np.uint8).reshape(-1, DIGEST_BYTES)
        return left

    def _use(self, digest: bytes, size: int) -> int:
        if digest in self.sizes:
            self.sizes.move_to_end(digest)
            return HELD
        if not 0 < size <= self._max_bytes:
            return SENT
        self.sizes[digest] = size
        return KEEP


class MirrorEncoder:
    """Encodes what goes to engines, each of which keeps at most `mm_cache_mib` of this front end."""

    def __init__(self, config: EngineConfig) -> None:
        self._encoder = Encoder()
        self._max_bytes = config.mm_cache_mib * MIB
        self._sent: dict[int, SentImages] = {}
        self._again: set[int] = set()  # requests that were sent again, by handle

    def encode(self, message: Any, peer: Peer | None = None) -> list[Frame]:
        """Frames of a message, or of a request for the engine behind `peer`, where it runs from now on: without the
        images that this one has, unless the request runs there already.

        Raises RequestError for a request that cannot be sent; then the engine is to forget.
        """
        if isinstance(message, UtilityCall) and message.method == RESET:
            self._sent.clear()
        if peer is None:
            return self._encoder.encode(message)
        try:
            return self._encoder.encode(self._reduced(message, peer))
        except (TypeError, ValueError, OverflowError) as error:
            self._sent.pop(peer.index, None)
            raise RequestError(f"request {message.request_id} cannot be sent: {error}") from error

    def _reduced(self, request: EngineCoreRequest, peer: Peer) -> EngineCoreRequest:
        features = request.features
        runs = peer.requests.setdefault(request.handle, request)
        if runs is not request or not features or SPANS not in features or not self._max_bytes:
            return request
        sent = self._sent.get(peer.index)
        if sent is None or sent.peer is not peer:
            sent = SentImages(peer, self._max_bytes)
            self._sent[peer.index] = sent
        return msgspec.structs.replace(request, features=sent.reduced(features))

    def ended(self, peer: Peer, outputs: EngineCoreOutputs) -> Iterator[EngineCoreRequest]:
        """Forget requests that ended. Those that named a lost image have not: the caller sends them again, which then
        brings all of their images. Each can come once.
        """
        for each in outputs.finished:
            request = peer.requests.pop(each.handle, None)
            if each.reason is FinishReason.ERROR:
                self._sent.pop(peer.index, None)
            if (
                request
                and request.features
                and each.error == LOST
                and each.handle not in self._again
            ):
                self._again.add(each.handle)
                peer.requests[each.handle] = msgspec.structs.replace(request)
                yield request
            else:
                self._again.discard(each.handle)
        outputs.finished = [each for each in outputs.finished if each.handle not in peer.requests]


class RequestDecoder:
    """Decodes requests as front ends encode them, and keeps what they say.

    `kept`: by client, the generation and the inputs of images by digest.
    """

    def __init__(self) -> None:
        self._decoder = Decoder(EngineCoreRequest)
        self.kept: dict[int, tuple[int, dict[bytes, dict[str, np.ndarray]]]] = {}

    def decode(self, frames: Sequence[Any], client: int) -> EngineCoreRequest:
        """The request with all its features. Raises WireError, with the text `LOST` where an image is not kept."""
        request = self._decoder.decode(frames)
        if request.features and HEADER in request.features:
            try:
                self._restore(client, request.features)
            except (KeyError, IndexError, TypeError, ValueError):
                raise WireError(LOST) from None
        return request

    def forget(self, client: int) -> None:
        """The client is gone."""
        self.kept.pop(client, None)

    def _restore(self, client: int, features: dict[str, np.ndarray]) -> None:
        generation, *flags = features.pop(HEADER).tolist()
        found, images = self.kept.get(client, (None, {}))
        if found != generation:
            images = {}
            self.kept[client] = (generation, images)
        for number, (flag, row) in enumerate(zip(flags, features[DIGESTS], strict=True)):
            digest = row.tobytes()
            if flag == KEEP:
                images[digest] = inputs_of(features, number)
            elif flag == HELD:
                for name, array in images[digest].items():
                    features[media_input(number, name)] = array
        for row in features.pop(DROPPED):
            images.pop(row.tobytes(), None)


def inputs_of(features: dict[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    """What belongs to one image, by the name that it has for each image."""
    prefix = media_input(number, "")
    return {
        name.removeprefix(prefix): array
        for name, array in features.items()
        if name.startswith(prefix)
    }

"""Images that an engine has are not sent to it again. Front end and engine processes.

A front end decides alone what an engine keeps of what it sent: each message says of every image whether its inputs come
with it, are to be kept, or are there already, and which ones to drop. Messages between the two keep their order, so
both know the same images; each front end and each engine are a pair of their own. A message of another generation makes
the engine forget first: a front end begins one when it starts, when it resets, and after an error, by which it learns
of anything that was lost.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from tenonry.config import EngineConfig
from tenonry.errors import WireError
from tenonry.features.checks import HEADER
from tenonry.media import DIGESTS, SPANS, media_input
from tenonry.messages import EngineCoreOutputs, EngineCoreRequest, UtilityCall
from tenonry.outputs import FinishReason
from tenonry.transport.serial import Decoder, Encoder, Frame

DROPPED = f"{HEADER}.dropped"  # u8[M, 32]: digests that go
RESET = "reset_mm_cache"
MIB = 1 << 20
# What a header says of an image.
SENT = 0
KEEP = 1
HELD = 2


class Peer(Protocol):
    """The link to one engine; another one of the same index is of an engine that started later."""

    index: int


class Configured(Protocol):
    """What knows the settings of a front end."""

    config: EngineConfig


class SentImages:
    """What one engine keeps of this front end: at most `max_bytes`; images that were sent longest ago go first."""

    def __init__(
        self,
        peer: Peer,
        max_bytes: int,
    ) -> None:
        self.peer = peer
        self.sizes: OrderedDict[bytes, int] = OrderedDict()
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._generation = secrets.randbits(62)

    def reduced(
        self,
        features: dict[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """The features to send: without inputs that the engine has, and with what it is to do."""
        left = dict(features)
        header = [self._generation]
        for number, row in enumerate(features[DIGESTS]):
            digest = row.tobytes()
            names = names_of(features, number)
            header.append(self._use(digest, sum(features[name].nbytes for name in names)))
            if header[-1] == HELD:
                for name in names:
                    del left[name]
        dropped = self._drop()
        left[HEADER] = np.array(header, np.int64)
        if dropped:
            left[DROPPED] = np.frombuffer(b"".join(dropped), np.uint8).reshape(len(dropped), -1)
        return left

    def _use(
        self,
        digest: bytes,
        size: int,
    ) -> int:
        if digest in self.sizes:
            self.sizes.move_to_end(digest)
            return HELD
        if not 0 < size <= self._max_bytes:
            return SENT
        self.sizes[digest] = size
        self._num_bytes += size
        return KEEP

    def _drop(self) -> list[bytes]:
        dropped = []
        while self._num_bytes > self._max_bytes:
            digest, size = self.sizes.popitem(last=False)
            self._num_bytes -= size
            dropped.append(digest)
        return dropped


class MirrorEncoder:
    """Encodes what goes to engines, each of which keeps at most `mm_cache_mib` of this front end."""

    def __init__(
        self,
        configured: Configured,
    ) -> None:
        self._encoder = Encoder()
        self._max_bytes = configured.config.mm_cache_mib * MIB
        self._sent: dict[int, SentImages] = {}

    def encode(
        self,
        message: Any,
        peer: Peer | None = None,
    ) -> list[Frame]:
        """Frames for the engine behind `peer`. Raises what the encoder raises; then the engine is to forget."""
        if isinstance(message, UtilityCall) and message.method == RESET:
            self._sent.clear()
        if peer is None:
            return self._encoder.encode(message)
        try:
            return self._encoder.encode(self._reduced(message, peer))
        except Exception:
            self.reset(peer)
            raise

    def _reduced(
        self,
        request: EngineCoreRequest,
        peer: Peer,
    ) -> EngineCoreRequest:
        features = request.features
        if not features or SPANS not in features or not self._max_bytes:
            return request
        sent = self._sent.get(peer.index)
        if sent is None or sent.peer is not peer:
            sent = SentImages(peer, self._max_bytes)
            self._sent[peer.index] = sent
        return msgspec.structs.replace(request, features=sent.reduced(features))

    def ended(
        self,
        peer: Peer,
        outputs: EngineCoreOutputs,
    ) -> list[int]:
        """The handles of requests that ended. One that failed may have named images that the engine has not."""
        if any(finished.reason is FinishReason.ERROR for finished in outputs.finished):
            self.reset(peer)
        return [finished.handle for finished in outputs.finished]

    def reset(
        self,
        peer: Peer,
    ) -> None:
        """Send all images anew; the engine forgets those it has when the next one comes."""
        self._sent.pop(peer.index, None)


class ReceivedImages:
    """What an engine keeps for its front ends: by client, the generation and inputs by digest."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[int, dict[bytes, dict[str, np.ndarray]]]] = {}

    def restore(
        self,
        client: int,
        request: EngineCoreRequest,
    ) -> None:
        """Put inputs that are kept back into the request. Raises WireError where one is not, or for a bad header."""
        features = request.features
        if not features or HEADER not in features:
            return
        try:
            self._restore(client, features)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise WireError(
                f"an image of the request is not kept by this engine: {error!r}; send the request again"
            ) from None

    def _restore(
        self,
        client: int,
        features: dict[str, np.ndarray],
    ) -> None:
        generation, *flags = features.pop(HEADER).tolist()
        found, images = self.kept.get(client, (None, {}))
        if found != generation:
            images = {}
            self.kept[client] = (generation, images)
        for number, (flag, row) in enumerate(zip(flags, features[DIGESTS], strict=True)):
            digest = row.tobytes()
            if flag == KEEP:
                prefix = media_input(number, "")
                names = names_of(features, number)
                images[digest] = {name.removeprefix(prefix): features[name] for name in names}
            elif flag == HELD:
                for name, array in images[digest].items():
                    features[media_input(number, name)] = array
        for row in features.pop(DROPPED, ()):
            images.pop(row.tobytes(), None)


class RequestDecoder:
    """Decodes requests as front ends encode them, and keeps what they say."""

    def __init__(self) -> None:
        self._decoder = Decoder(EngineCoreRequest)
        self._images = ReceivedImages()

    def decode(
        self,
        frames: Sequence[Any],
        client: int,
    ) -> EngineCoreRequest:
        """The request with all its features. Raises WireError."""
        request = self._decoder.decode(frames)
        self._images.restore(client, request)
        return request


def names_of(features: dict[str, np.ndarray], number: int) -> list[str]:
    """The names of what belongs to one image."""
    prefix = media_input(number, "")
    return [name for name in features if name.startswith(prefix)]

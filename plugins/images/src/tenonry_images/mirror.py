"""The request codec `mirror`: an engine caches images, and a front end does not send those again. Front end, engine.

A front end alone decides what an engine keeps of what it sent: each message tells of every image whether its inputs
come with it, are to be kept, or are there already, and which ones to drop. Messages between the two keep their order,
so both know the same images; each front end and each engine are a pair of their own. A message of another generation
makes the engine forget first: a front end begins one when it starts, when it resets, and after an error, by which it
learns of anything that was lost. A request that named a lost image is then sent once more, with all of its images.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np

from tenonry.errors import RequestError
from tenonry.interfaces.plugin import PluginContext
from tenonry.interfaces.request_codec import Peer, RequestCodec
from tenonry.messages import EngineCoreRequest, FinishedOutput
from tenonry.step import Media
from tenonry.transport.serial import Frame
from tenonry_images.checks import DIGEST_BYTES
from tenonry_images.settings import ImageSettings

NOT_CACHED = "media_not_cached"  # the ErrorCode of a request that named a lost image
MIB = 1 << 20
Inputs = dict[str, np.ndarray]
# Message codes for the state of an image.
SENT = 0
KEEP = 1
HELD = 2


class SentImages:
    """Images of this front end that one engine caches: at most `max_bytes`, least recently used evicted first.

    `resent`: requests that were sent once more, by handle.
    """

    def __init__(self, peer: Peer, max_bytes: int, resent: Collection[int] = ()) -> None:
        self.peer = peer
        self.resent = {*resent}
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        self._max_bytes = max_bytes
        self._generation = secrets.randbits(62)

    def reduced(self, media: Media) -> Media:
        """The media to send: empty inputs for images that the engine has, and a header behind those of the last."""
        header = [self._generation]
        inputs = []
        for row, each in zip(media.digests, media.inputs, strict=True):
            flag = self._use(row.tobytes(), sum(array.nbytes for array in each.values()))
            header.append(flag)
            inputs.append({} if flag == HELD else each)
        dropped = bytearray()
        while sum(self._sizes.values()) > self._max_bytes:
            digest, _ = self._sizes.popitem(last=False)
            dropped += digest
        rows = np.frombuffer(dropped, np.uint8).reshape(-1, DIGEST_BYTES)
        inputs.append({"header": np.array(header, np.int64), "dropped": rows})
        return msgspec.structs.replace(media, inputs=inputs)

    def _use(self, digest: bytes, size: int) -> int:
        if digest in self._sizes:
            self._sizes.move_to_end(digest)
            return HELD
        if not 0 < size <= self._max_bytes:
            return SENT
        self._sizes[digest] = size
        return KEEP


class ImageMirror(RequestCodec):
    """Each engine keeps at most `mm_cache_mib` of each front end.

    `kept`, in an engine: by front end, the generation and the inputs of images by digest.
    """

    Settings = ImageSettings

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._max_bytes = context.config.section(ImageSettings).mm_cache_mib * MIB
        self._sent: dict[int, SentImages] = {}
        self.kept: dict[int, tuple[int, dict[bytes, Inputs]]] = {}

    def encode(self, request: EngineCoreRequest, peer: Peer) -> list[Frame]:
        if request.media is None:
            return super().encode(request, peer)
        sent = self._sent.get(peer.index)
        if sent is None or sent.peer is not peer:
            sent = SentImages(peer, self._max_bytes)
            self._sent[peer.index] = sent
        media = sent.reduced(request.media)
        try:
            return super().encode(msgspec.structs.replace(request, media=media), peer)
        except RequestError:
            self.forget(peer.index)  # the engine does not get what was to be kept
            raise

    def ended(self, peer: Peer, outcome: FinishedOutput, request: EngineCoreRequest | None) -> bool:
        """Begin a new generation; True for a request that named a lost image, once."""
        old = self._sent.get(peer.index)
        resent = old.resent if old else set()
        is_lost = (
            request is not None and outcome.code == NOT_CACHED and outcome.handle not in resent
        )
        resent = resent & peer.requests.keys()
        if is_lost:
            resent.add(outcome.handle)
        self._sent[peer.index] = SentImages(peer, self._max_bytes, resent)
        return is_lost

    def decode(self, frames: Sequence[Any], client: int) -> EngineCoreRequest:
        request = super().decode(frames, client)
        if request.media is not None:
            try:
                self._restore(client, request.media)
            except (KeyError, IndexError, TypeError, ValueError):
                raise RequestError(
                    "an image of the request is not cached by this engine; send the request again",
                    "media",
                    NOT_CACHED,
                ) from None
        return request

    def forget(self, peer: int | None = None) -> None:
        for kept in (self._sent, self.kept):
            if peer is None:
                kept.clear()
            else:
                kept.pop(peer, None)

    def _restore(self, client: int, media: Media) -> None:
        header = media.inputs.pop()
        generation, *flags = header["header"].tolist()
        found, images = self.kept.get(client, (None, {}))
        if found != generation:
            images = {}
            self.kept[client] = (generation, images)
        for number, (flag, row) in enumerate(zip(flags, media.digests, strict=True)):
            digest = row.tobytes()
            if flag == KEEP:
                images[digest] = dict(media.inputs[number])
            elif flag == HELD:
                media.inputs[number] = dict(images[digest])
        for row in header["dropped"]:
            images.pop(row.tobytes(), None)

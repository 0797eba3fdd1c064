"""A request codec without its own distribution: an engine keeps all media. Front end and engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from tenonry.errors import RequestError
from tenonry.interfaces.plugin import PluginContext
from tenonry.interfaces.request_codec import Peer, RequestCodec
from tenonry.messages import EngineCoreRequest, FinishedOutput
from tenonry.transport.serial import Frame

MISSING = "media_missing"
Inputs = dict[str, np.ndarray]


class KeepingCodec(RequestCodec):
    """Sends the inputs of each digest once per engine. `kept`: by front end and digest."""

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self.sent: dict[int, tuple[Peer, set[bytes]]] = {}
        self.kept: dict[int, dict[bytes, Inputs]] = {}
        self.resent: set[int] = set()

    def encode(self, request: EngineCoreRequest, peer: Peer) -> list[Frame]:
        if request.media is None:
            return super().encode(request, peer)
        known = self.known(peer)
        inputs: list[Inputs] = []
        for row, each in zip(request.media.digests, request.media.inputs, strict=True):
            inputs.append({} if row.tobytes() in known else each)
            known.add(row.tobytes())
        try:
            media = msgspec.structs.replace(request.media, inputs=inputs)
            return super().encode(msgspec.structs.replace(request, media=media), peer)
        except RequestError:
            self.forget(peer.index)
            raise

    def known(self, peer: Peer) -> set[bytes]:
        """Digests stored by the engine behind `peer`."""
        owner, known = self.sent.get(peer.index, (None, set()))
        if owner is not peer:
            known = set()
            self.sent[peer.index] = (peer, known)
        return known

    def ended(self, peer: Peer, outcome: FinishedOutput, request: EngineCoreRequest | None) -> bool:
        self.forget(peer.index)
        again = outcome.code == MISSING and outcome.handle not in self.resent
        self.resent.add(outcome.handle)
        return again

    def decode(self, frames: Sequence[Any], client: int) -> EngineCoreRequest:
        request = super().decode(frames, client)
        if request.media is not None:
            kept = self.kept.setdefault(client, {})
            for number, (row, each) in enumerate(
                zip(request.media.digests, request.media.inputs, strict=True)
            ):
                digest = row.tobytes()
                if each:
                    kept[digest] = dict(each)
                elif digest not in kept:
                    raise RequestError("media are missing", "media", MISSING)
                request.media.inputs[number] = dict(kept[digest])
        return request

    def forget(self, peer: int | None = None) -> None:
        for known in (self.sent, self.kept):
            for index in list(known) if peer is None else [peer]:
                known.pop(index, None)

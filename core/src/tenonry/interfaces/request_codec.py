"""RequestCodec: encoding of requests for engines. Front end and engine processes; each builds one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tenonry.errors import RequestError
from tenonry.interfaces.plugin import Plugin, PluginContext
from tenonry.messages import EngineCoreRequest, FinishedOutput
from tenonry.transport.serial import Decoder, Encoder, Frame


class Peer(Protocol):
    """Link of a front end to one engine. A later engine of the same index has another link.

    `requests`: running ones by handle.
    """

    index: int
    requests: dict[int, EngineCoreRequest]


class RequestCodec(Plugin[PluginContext]):
    """Sends complete requests. A subclass may omit content that the engine already has.

    Contract:
    - `decode` returns what `encode` was given, or raises: never a request with other content.
    - Front ends call `encode`, `ended` and `forget`, engines `decode` and `forget`; each on one thread. All front ends
      and engines of an instance use the same class.
    - Messages of a front end reach an engine in order, but some may be lost; either side may restart.
    - A request without media costs no more than in this class.
    """

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._encoder = Encoder()
        self._decoder = Decoder(EngineCoreRequest)

    def encode(self, request: EngineCoreRequest, peer: Peer) -> list[Frame]:
        """Frames of a request for the engine behind `peer`. Raises RequestError for a field that no message carries."""
        try:
            return self._encoder.encode(request)
        except (TypeError, ValueError, OverflowError) as error:
            raise RequestError(f"request {request.request_id} cannot be sent: {error}") from error

    def ended(self, peer: Peer, outcome: FinishedOutput, request: EngineCoreRequest | None) -> bool:
        """Handle a failed request, or with None one aborted before. Returns True to encode and send it once more."""
        return False

    def decode(self, frames: Sequence[Any], client: int) -> EngineCoreRequest:
        """Decode a request of a front end. An exception fails it alone; its `code`, if any, is passed to `ended`."""
        return self._decoder.decode(frames)

    def forget(self, peer: int | None = None) -> None:
        """Drop the state of an engine, or of a front end, by its index; by default of all."""

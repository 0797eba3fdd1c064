"""The request codec of one front end: a fault of it is named, and fails one request. Front end."""

from __future__ import annotations

from collections.abc import Iterator

from tenonry.client.engine_link import EngineLink
from tenonry.config import EngineConfig
from tenonry.errors import EngineGenerateError, TenonryError
from tenonry.interfaces.plugin import PluginContext
from tenonry.interfaces.request_codec import RequestCodec
from tenonry.messages import EngineCoreOutputs, EngineCoreRequest
from tenonry.outputs import FinishReason
from tenonry.plugin.manager import build_plugin
from tenonry.plugin.plan import PluginPlan
from tenonry.transport.serial import Frame


class EngineCodec:
    """Encodes requests for engines, and keeps the requests of each link."""

    def __init__(self, config: EngineConfig, plan: PluginPlan) -> None:
        codec = build_plugin(plan.get("request_codec"), PluginContext(config))
        self._codec: RequestCodec = codec
        self.forget = codec.forget

    def encode(self, request: EngineCoreRequest, link: EngineLink) -> list[Frame]:
        """Frames of a request, which runs in the engine of this link from now on.

        Raises RequestError, or EngineGenerateError if the codec fails.
        """
        try:
            frames = self._codec.encode(request, link)
        except TenonryError:
            raise
        except Exception as error:
            text = f"{type(self._codec).__qualname__}.encode raised {error!r}"
            raise EngineGenerateError(text, request_id=request.request_id) from error
        link.requests[request.handle] = request
        return frames

    def ended(self, link: EngineLink, outputs: EngineCoreOutputs) -> Iterator[EngineCoreRequest]:
        """Drop the requests that ended. Those that the codec wants sent once more are returned, and have not ended."""
        finished = outputs.finished
        if not finished:
            return
        outputs.finished = []
        for outcome in finished:
            request = link.requests.pop(outcome.handle, None)
            has_failed = outcome.reason is FinishReason.ERROR
            if has_failed and self._codec.ended(link, outcome, request) and request is not None:
                yield request
            else:
                outputs.finished.append(outcome)

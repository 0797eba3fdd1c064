"""An engine as a front end sees it, and the request codec: a fault of it is named, and fails one request. Front end."""

from __future__ import annotations

from collections.abc import Callable

from tenonry.config import EngineConfig
from tenonry.errors import EngineDeadError, EngineGenerateError, TenonryError
from tenonry.interfaces.launcher import Death
from tenonry.interfaces.plugin import PluginContext
from tenonry.interfaces.request_codec import RequestCodec
from tenonry.messages import EngineCoreOutputs, EngineCoreRequest, EngineFacts, FinishedOutput
from tenonry.outputs import FinishReason
from tenonry.plugin.manager import build_plugin
from tenonry.plugin.plan import PluginPlan
from tenonry.transport.serial import Frame
from tenonry.transport.sockets import port_identity


class EngineLink:
    """One engine as this front end sees it.

    `facts`: as it reported them. `requests`: those that run there, by handle. `dead`: how it ended, if it has.
    """

    __slots__ = ("dead", "epoch", "facts", "identity", "index", "requests")

    def __init__(self, facts: EngineFacts) -> None:
        self.facts = facts
        self.index = facts.index
        self.epoch = facts.epoch
        self.identity = port_identity(facts.index, facts.epoch)
        self.requests: dict[int, EngineCoreRequest] = {}
        self.dead: Death | None = None


Send = Callable[[EngineLink, EngineCoreRequest], None]


class EngineCodec:
    """Encodes requests for engines, and keeps the requests of each link."""

    def __init__(self, config: EngineConfig, plan: PluginPlan) -> None:
        self._codec: RequestCodec = build_plugin(plan.get("request_codec"), PluginContext(config))
        self.forget = self._codec.forget

    def encode(self, request: EngineCoreRequest, link: EngineLink) -> list[Frame]:
        """Frames of a request, which runs in the engine of this link from now on.

        Raises RequestError, or EngineGenerateError if the codec fails.
        """
        try:
            frames = self._codec.encode(request, link)
        except TenonryError:
            raise
        except Exception as error:
            raise EngineGenerateError(
                f"{type(self._codec).__qualname__}.encode raised {error!r}"
            ) from error
        link.requests[request.handle] = request
        return frames

    def ended(self, link: EngineLink, outputs: EngineCoreOutputs, send: Send) -> None:
        """Drop the requests that ended; `send` those once more that the codec asks for, which have not ended."""
        outputs.finished = [
            each for each in outputs.finished if not self._is_sent_again(link, each, send)
        ]

    def _is_sent_again(self, link: EngineLink, outcome: FinishedOutput, send: Send) -> bool:
        request = link.requests.pop(outcome.handle, None)
        if outcome.reason is not FinishReason.ERROR:
            return False
        try:
            if not self._codec.ended(link, outcome, request) or request is None:
                return False
            send(link, request)
        except EngineDeadError:  # it ends with its engine
            pass
        except Exception as error:  # noqa: BLE001 - a plugin's
            outcome.error = f"{outcome.error}; {type(self._codec).__qualname__}: {error!r}"
            return False
        return True

"""Links of a front end to its engines, and calls of the request codec: a fault names the codec and fails one request.
Front end.
"""

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
    """Link of this front end to one engine.

    `facts`: as reported by the engine. `requests`: running ones by handle. `dead`: cause of its end, or None.
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
    """Encodes requests for engines and records the requests of each link."""

    def __init__(self, config: EngineConfig, plan: PluginPlan) -> None:
        self._codec: RequestCodec = build_plugin(plan.get("request_codec"), PluginContext(config))
        self.forget = self._codec.forget

    def encode(self, request: EngineCoreRequest, link: EngineLink) -> list[Frame]:
        """Return the frames of a request, which from now on belongs to the engine of this link.

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
        """Drop finished requests; `send` again those that the codec selects."""
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
        except EngineDeadError:  # the request ends with its engine
            pass
        except Exception as error:  # noqa: BLE001 - a plugin's
            outcome.error = f"{outcome.error}; {type(self._codec).__qualname__}: {error!r}"
            return False
        return True

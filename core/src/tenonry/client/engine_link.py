"""One engine as a front end sees it. Front end."""

from __future__ import annotations

from tenonry.interfaces.launcher import Death
from tenonry.messages import EngineCoreRequest, EngineFacts
from tenonry.transport.sockets import port_identity


class EngineLink:
    """One engine as this front end sees it.

    `requests`: those that run there, by handle. `dead`: how it ended, if it has.
    """

    __slots__ = ("dead", "epoch", "identity", "index", "requests")

    def __init__(self, facts: EngineFacts) -> None:
        self.index = facts.index
        self.epoch = facts.epoch
        self.identity = port_identity(facts.index, facts.epoch)
        self.requests: dict[int, EngineCoreRequest] = {}
        self.dead: Death | None = None

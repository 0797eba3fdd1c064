"""The engine recovery `resume`: engines come back, and their streams continue. Front end, or a supervisor."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import Field

from tenonry.config import EngineConfig
from tenonry.errors import Unsupported
from tenonry.interfaces.launcher import FIRST_STANDBY, Death
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.recovery import EngineRecovery, RecoveryContext
from tenonry.messages import EngineCoreRequest
from tenonry.plugin.plan import load_class
from tenonry_recovery.fallbacks import fallbacks_of, with_choice
from tenonry_recovery.settings import RecoverySettings


class RecoveryOptions(PluginOptions):
    """Restarts of each engine, and the seconds that they are counted over."""

    max_restarts: int = Field(3, ge=0)
    window_s: float = Field(60.0, gt=0)


class ResumeStreams(EngineRecovery):
    """`streams`: the requests of dead engines. `owner`: restarts these, where this process owns them; elsewhere their
    owner reports when suspects are to be tried, and when requests are admitted or engines given up.
    """

    Options = RecoveryOptions
    Settings = RecoverySettings

    @classmethod
    def restarts(cls, config: EngineConfig) -> bool:
        return config.section(RecoverySettings).engine_death != "stop"

    @classmethod
    def alternatives(cls, config: EngineConfig, manager: Any) -> list[EngineConfig]:
        """With one of the fallbacks, or with several."""
        found = fallbacks_of(config, manager).items()
        several = (itertools.combinations(found, count) for count in range(1, len(found) + 1))
        return [
            with_choice(config, manager, dict(some))
            for some in itertools.chain.from_iterable(several)
        ]

    def __init__(self, context: RecoveryContext) -> None:
        from tenonry.client.engines import OwnedEngines
        from tenonry_recovery.owner import OwnedRecovery
        from tenonry_recovery.standbys import check_supported
        from tenonry_recovery.streams import StreamRecovery

        super().__init__(context)
        self._engines = engines = context.engines
        self._client = engines.client
        launcher = load_class(engines.plan.get("launcher"))
        check_supported(context.config, engines.model, launcher)
        self.streams = StreamRecovery(
            self._client, context.streams, engines.stats.record, context.config.max_num_seqs
        )
        self.owner: OwnedRecovery | None = None
        if isinstance(engines, OwnedEngines):
            self.owner = OwnedRecovery(context, engines)

    def listen(self) -> None:
        if self.owner is not None:
            self.owner.standbys.listen()

    def on_death(
        self, index: int, death: Death, requests: Mapping[int, EngineCoreRequest]
    ) -> Collection[int]:
        if index >= FIRST_STANDBY and self.owner is not None:
            self.owner.standbys.lost(index, death)
        if index >= FIRST_STANDBY or not self._client.recovers or self._client.dead is not None:
            return ()
        if self.owner is not None:
            self.owner.restarts.on_death(index, death)
        if self._client.dead is None:
            self.streams.resume(index, death, requests)
        return requests.keys()

    def on_moved(self, index: int, requests: Mapping[int, EngineCoreRequest]) -> Collection[int]:
        self.streams.move(index, requests)
        return requests.keys()

    async def on_started(self, indexes: Sequence[int]) -> None:
        await self.streams.try_suspects(indexes)

    def hold(self, requests: Sequence[EngineCoreRequest]) -> None:
        self.streams.hold(requests)

    def on_admitted(self, indexes: Sequence[int]) -> None:
        self.streams.release()

    async def on_call(self, method: str, args: Sequence[Any]) -> None:
        if self.owner is not None:
            await self.owner.standbys.follow(method, args)

    def on_given_up(self, index: int, reason: str) -> None:
        self.streams.release()
        if not self._client.awaited:
            self.streams.fail_suspects(reason)

    def on_change(self, config: EngineConfig) -> None:
        self.streams.attribution.max_num_seqs = config.max_num_seqs

    async def replace(self, changes: Mapping[str, Any], size: int | None = None) -> None:
        """Raises what the start of an engine raises, ConfigError or Unsupported."""
        if self.owner is not None:
            await self.owner.replace(changes, size)
            return
        replace = getattr(self._engines, "replace", None)
        if replace is None or size is not None:
            raise Unsupported(
                "these engines cannot be replaced while they run: they serve a group of servers (data_parallel_rank); "
                "start another group with the changes, and move clients there"
            )
        await replace(changes)

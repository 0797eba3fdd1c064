"""The testkit's connector in memory, for ranks in processes of their own, with one store per rank."""

from __future__ import annotations

from tenonry.interfaces.kv_connector import KVConnectorRole
from tenonry_testkit.fakes.connector import MemoryConnector, MemoryOptions


class RankOptions(MemoryOptions):
    """`bad_rank` alone fails loads; `late_rank` takes `late_polls` steps more for one."""

    bad_rank: int = 0
    late_rank: int = 0
    late_polls: int = 0


class RankConnector(MemoryConnector):
    """Connector whose scheduler half counts requested saves as saved; the ranks have the bytes."""

    Options = RankOptions

    def __init__(self, context):
        super().__init__(context)
        self.engine_id = context.engine_id
        if context.role is KVConnectorRole.WORKER and context.rank != self.options.bad_rank:
            self._failures_left = 0
        if context.role is KVConnectorRole.WORKER and context.rank == self.options.late_rank:
            polls = self.options.delay_polls + self.options.late_polls
            self.options = self.options.model_copy(update={"delay_polls": polls})

    def finished(self, request, block_ids):
        waits, params = super().finished(request, block_ids)
        if waits:
            for name, _ in self._saves[-1][1]:
                self.store.blocks[name] = b""
        return waits, params

"""The connector `host`, and its options. Engine and worker processes."""

from __future__ import annotations

from typing import ClassVar, cast

import psutil
from pydantic import ByteSize, Field

from tenonry.errors import ConfigError
from tenonry.interfaces.kv_connector import BlockStore
from tenonry.interfaces.plugin import PluginOptions
from tenonry_kv_connectors.host.index import HostIndex
from tenonry_kv_connectors.host.store import HostStore
from tenonry_kv_connectors.stores.connector import StoreConnector, block_bytes


class HostOptions(PluginOptions):
    """`--kv-connector-option key=value`."""

    size: ByteSize = Field(
        ByteSize(4 << 30),
        gt=0,
        description="Main memory for K/V of one engine, over all its ranks: 4GiB, 500MB, or bytes.",
    )


class HostConnector(StoreConnector):
    """Keeps blocks in the memory of the workers. Each engine has its own; they are lost when it ends."""

    Options = HostOptions
    label: ClassVar[str] = "host"

    @property
    def _rank_bytes(self) -> int:
        options = cast("HostOptions", self.context.options)
        return options.size // self.context.config.world_size

    def make_index(self) -> HostIndex:
        of_block = block_bytes(self.context)
        capacity = self._rank_bytes // max(of_block, 1)
        if capacity == 0:
            raise ConfigError(
                f"KV connector 'host': size gives each rank {self._rank_bytes} bytes, and one block takes {of_block}; "
                f"give at least {of_block * self.context.config.world_size}: --kv-connector-option size=4GiB"
            )
        return HostIndex(capacity)

    def make_store(self, blocks: BlockStore) -> HostStore:
        limit = self._rank_bytes
        available = psutil.virtual_memory().available
        if limit > available:
            raise ConfigError(
                f"KV connector 'host': size gives each rank {limit} bytes of main memory, and {available} are "
                "available; give less: --kv-connector-option size=…"
            )
        return HostStore(limit)

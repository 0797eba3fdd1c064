"""The connector `disk`, and its options. Engine and worker processes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, cast

from pydantic import BaseModel, ByteSize, Field

from tenonry.config import EngineConfig
from tenonry.interfaces.kv_connector import BlockStore
from tenonry.interfaces.plugin import PluginOptions
from tenonry_kv_connectors.disk.folder import BlockFolder, open_private
from tenonry_kv_connectors.disk.index import DiskIndex
from tenonry_kv_connectors.disk.store import DiskStore
from tenonry_kv_connectors.disk.writer import DiskWriter
from tenonry_kv_connectors.stores.connector import StoreConnector
from tenonry_kv_connectors.stores.identity import model_identity


class DiskOptions(PluginOptions):
    """`--kv-connector-option key=value`."""

    directory: Path = Field(
        description="Folder of the files, created if missing. Only this user may have write access."
    )
    size: ByteSize = Field(
        ByteSize(16 << 30),
        gt=0,
        description="Maximum size of all files, over all ranks and models: 50GiB, 500MB, or bytes.",
    )
    staging: ByteSize = Field(
        ByteSize(256 << 20),
        gt=0,
        description="Main memory per engine for pending writes. Further blocks are not saved.",
    )
    sync: bool = Field(
        False,
        description="Sync each file to the device. Otherwise a power failure can lose the "
        "last blocks.",
    )


class DiskConnector(StoreConnector):
    """Keeps blocks in files, for this engine, for others of the same configuration, and for those that come later."""

    Options = DiskOptions
    label: ClassVar[str] = "disk"

    @classmethod
    def check(cls, config: EngineConfig, options: BaseModel) -> None:
        open_private(cast("DiskOptions", options).directory)

    @property
    def _options(self) -> DiskOptions:
        return cast("DiskOptions", self.context.options)

    @property
    def _folder(self) -> BlockFolder:
        root = open_private(self._options.directory)
        return BlockFolder(root, self.context.config.world_size)

    def make_index(self) -> DiskIndex:
        return DiskIndex(self._folder, model_identity(self.context))

    def make_store(self, blocks: BlockStore) -> DiskStore:
        folder = self._folder
        rank = self.context.rank
        num_ranks = self.context.config.world_size
        writer = DiskWriter(
            folder.root,
            folder.rank_name(rank),
            self._options.size // num_ranks,
            self._options.staging // num_ranks,
            syncs=self._options.sync,
        )
        return DiskStore(folder, rank, blocks.layout, writer)

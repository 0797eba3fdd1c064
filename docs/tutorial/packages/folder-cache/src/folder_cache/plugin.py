"""KV connector `folder-cache`: blocks of finished prompts in a folder. Engine process and worker process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from tenonry.interfaces.kv_connector import BlockStore, KVConnector, KVConnectorContext
from tenonry.interfaces.plugin import PluginOptions
from tenonry.request import Request


class FolderCacheOptions(PluginOptions):
    """Options of `--kv-connector-option`."""

    folder: str = Field(description="Folder of the blocks.")


class FolderCache(KVConnector):
    """Stores K/V of finished prompts in files, for this engine and for later ones.

    The metadata of a step are two lists, of loads and of saves: a handle, and a pair of name and block id per block.
    """

    interface_version = 1
    Options = FolderCacheOptions

    def __init__(self, context: KVConnectorContext) -> None:
        super().__init__(context)
        options = FolderCacheOptions.model_validate(context.options.model_dump())
        self.folder = Path(options.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.size = context.kv_cache.block_size if context.kv_cache else 0  # always planned here
        self.first: dict[int, int] = {}  # handle → first block that the engine has not cached
        self.loads: list[Any] = []
        self.saves: list[Any] = []
        self.done: list[int] = []
        self.failed: list[int] = []

    # scheduler half
    def match(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        names = self.names(request, (request.num_tokens - 1) // self.size)  # never the last token
        first = end = num_computed_tokens // self.size
        while end < len(names) and (self.folder / names[end]).exists():
            end += 1
        self.first[request.handle] = first
        return (end - first) * self.size, False  # False: loaded before the step begins

    def allocated(
        self, request: Request, block_ids: Sequence[int], num_external_tokens: int
    ) -> None:
        first, count = self.first.pop(request.handle), num_external_tokens // self.size
        if count:
            names = self.names(request, first + count)[first:]
            blocks = [int(block) for block in block_ids[first : first + count]]
            self.loads.append([request.handle, [*zip(names, blocks, strict=True)]])

    def finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        self.first.pop(request.handle, None)
        pairs = zip(self.names(request, len(block_ids)), map(int, block_ids), strict=True)
        new = [pair for pair in pairs if not (self.folder / pair[0]).exists()]
        if new:
            self.saves.append([request.handle, new])
        return bool(new), None  # True: keep the blocks until `poll` names the request

    def build_metadata(self) -> Any:
        work, self.loads, self.saves = [self.loads, self.saves], [], []
        return work if any(work) else None

    def reset(self) -> bool:
        for file in self.folder.iterdir():
            file.unlink()
        return True

    # worker half
    def bind(self, blocks: BlockStore) -> None:
        self.blocks = blocks

    def load(self, metadata: Any) -> None:
        for handle, pairs in metadata[0] if metadata else ():
            try:
                data = [(self.folder / name).read_bytes() for name, _ in pairs]
            except OSError:
                self.failed.append(handle)  # the engine computes these tokens itself
            else:
                self.blocks.write([block for _, block in pairs], data)

    def save(self, metadata: Any) -> None:
        for handle, pairs in metadata[1] if metadata else ():
            data = self.blocks.read([block for _, block in pairs])
            for (name, _), content in zip(pairs, data, strict=True):
                draft = self.folder / f"{name}.draft"
                draft.write_bytes(content)
                draft.replace(self.folder / name)  # a block is found whole or not at all
            self.done.append(handle)

    def poll(self) -> tuple[Iterable[int], Iterable[int]]:
        news = self.done, self.failed
        self.done, self.failed = [], []
        return news

    # both halves
    def names(self, request: Request, count: int) -> list[str]:
        """Names of the first `count` blocks: a digest covers a block and all before it; files outlive the model."""
        model = self.context.model
        key = repr((model.path, model.commit, model.dtype, self.size)).encode()
        return [hashlib.sha256(key + digest).hexdigest() for digest in self.digests(request, count)]

"""The connector `peer`, and its options. Engine and worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from pydantic import BaseModel, ByteSize, Field

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.interfaces.kv_connector import (
    BlockStore,
    KVConnector,
    KVConnectorContext,
    KVConnectorRole,
)
from tenonry.interfaces.plugin import PluginOptions
from tenonry.request import Request
from tenonry.transport.keys import CurveKeys, read_keys
from tenonry_kv_connectors.peer.exchange import Exchange
from tenonry_kv_connectors.peer.transfer_queue import TransferQueue


class PeerOptions(PluginOptions):
    """`--kv-connector-option key=value`."""

    host: str = Field(
        "127.0.0.1",
        min_length=1,
        max_length=255,
        description="Address of this node for the other engines.",
    )
    size: ByteSize = Field(
        ByteSize(1 << 30),
        gt=0,
        description="Main memory for computed prompts until they are fetched, over all ranks: "
        "1GiB, or bytes.",
    )
    hold: float = Field(
        60.0, gt=0, le=3600, description="Seconds for which a computed prompt is kept."
    )
    timeout: float = Field(
        10.0,
        gt=0,
        le=300,
        description="Fetch timeout in seconds, after which the prompt is computed.",
    )


class PeerConnector(KVConnector):
    """Gives the blocks of a prompt to the engine that decodes it, and takes them there.

    Metadata: [address of the registry or "", whether to forget what is held, holds, pulls].
    """

    Options = PeerOptions

    @classmethod
    def check(cls, config: EngineConfig, options: BaseModel) -> None:
        _keys(config)

    def __init__(self, context: KVConnectorContext) -> None:
        super().__init__(context)
        self._options = cast("PeerOptions", context.options)
        self._rank = context.rank
        self._queue: TransferQueue | None = None
        self._exchange: Exchange | None = None
        if context.role is KVConnectorRole.SCHEDULER:
            self._queue = TransferQueue(context, self._options.host, _keys(context.config))

    # ------------------------------------------------------------------ scheduler half
    @property
    def queue(self) -> TransferQueue:
        """Transfer queue of the scheduler half."""
        if self._queue is None:
            raise RuntimeError("KV connector 'peer': this is the worker half")
        return self._queue

    def match(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        if not request.source.kv_transfer_params:
            return 0, False
        return self.queue.match(request, num_computed_tokens, self.digests)

    def allocated(
        self, request: Request, block_ids: Sequence[int], num_external_tokens: int
    ) -> None:
        if num_external_tokens:
            self.queue.allocated(request, block_ids, num_external_tokens, self.digests)

    def build_metadata(self) -> Any:
        return self.queue.take()

    def finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        if not request.source.kv_transfer_params:
            return False, None
        return self.queue.finished(request, block_ids, self.digests)

    def reset(self) -> bool:
        return self.queue.reset()

    def numbers(self) -> dict[str, float]:
        return self.queue.numbers()

    # ------------------------------------------------------------------ worker half
    def bind(self, blocks: BlockStore) -> None:
        options = self._options
        config = self.context.config
        self._exchange = Exchange(
            blocks,
            _keys(config),
            host=options.host,
            limit=options.size // config.world_size,
            hold=options.hold,
            timeout=options.timeout,
        )

    @property
    def exchange(self) -> Exchange:
        """Block exchange of the worker half, once the KV tensors exist."""
        if self._exchange is None:
            raise RuntimeError("KV connector 'peer': bind() comes first")
        return self._exchange

    def load(self, metadata: Any) -> None:
        if metadata is None:
            return
        registry, clears, _, pulls = metadata
        if registry:
            self.exchange.register(registry, self._rank)
        if clears:
            self.exchange.clear()
        for handle, peer, token, number, pairs in pulls:
            self.exchange.pull(handle, peer[self._rank], token, number, pairs)

    def save(self, metadata: Any) -> None:
        if metadata is None:
            return
        _, _, holds, _ = metadata
        for handle, token, number, readers, pairs in holds:
            self.exchange.hold(handle, token, number, readers, pairs)

    def poll(self) -> tuple[Iterable[int], Iterable[int]]:
        return self.exchange.ended()

    # ------------------------------------------------------------------ both
    def shutdown(self) -> None:
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None


def _keys(config: EngineConfig) -> CurveKeys:
    """The deployment's keys. Raises ConfigError."""
    if config.auth_key_file is None:
        raise ConfigError(
            "KV connector 'peer' needs keys that all its engines know: write them with `tenonry keys FILE`, and give "
            "--auth-key-file FILE to each (--prefill-engines makes them itself)"
        )
    return read_keys(config.auth_key_file)

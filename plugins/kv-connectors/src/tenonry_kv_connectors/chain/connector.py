"""The connector `chain`. Engine and worker processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from pydantic import BaseModel

from tenonry.config import EngineConfig
from tenonry.interfaces.kv_connector import BlockStore, KVConnector, KVConnectorContext
from tenonry.plugin.checks import load_options
from tenonry.plugin.kinds import KINDS
from tenonry.plugin.manager import blamed, build_plugin, resolve_point
from tenonry.request import Request
from tenonry_kv_connectors.chain.endings import Endings
from tenonry_kv_connectors.chain.options import ChainOptions

POINT = KINDS["kv_connector"]


class ChainConnector(KVConnector):
    """Queries its connectors in order. A request is loaded by the first that has all of it, else by the one that has
    most.

    Metadata: [each connector's own, [[handle, connectors that will name it], …]].
    """

    Options = ChainOptions

    @classmethod
    def check(cls, config: EngineConfig, options: BaseModel) -> None:
        for choice in cast("ChainOptions", options).choices():
            found, record = resolve_point(POINT, choice)
            with blamed(record, "check"):
                found.check(config, load_options(record, found))

    def __init__(self, context: KVConnectorContext) -> None:
        super().__init__(context)
        options = cast("ChainOptions", context.options)
        self._connectors: list[KVConnector] = []
        try:
            for choice in options.choices():
                _, record = resolve_point(POINT, choice)
                self._connectors.append(build_plugin(record, dataclasses.replace(context)))
        except BaseException:
            self.shutdown()
            raise
        self._names = options.connectors
        self._size = context.kv_cache.block_size if context.kv_cache else 1
        self._chosen: dict[int, tuple[int, bool]] = {}  # handle → (connector, later); one step
        self._expected: list[list[Any]] = []
        self._endings = Endings()
        no_parts = [None] * len(self._connectors)
        self._nothing: list[list[Any]] = [no_parts, []]

    # ------------------------------------------------------------------ scheduler half
    def name_blocks(self, digests: Callable[[Request, int], Sequence[bytes]]) -> None:
        super().name_blocks(digests)
        for connector in self._connectors:
            connector.name_blocks(digests)

    def match(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        usable = (request.num_tokens - 1) // self._size * self._size
        wanted = usable - num_computed_tokens
        most = 0
        is_later = False
        for number, connector in enumerate(self._connectors):
            extra, later = connector.match(request, num_computed_tokens)
            if extra is None:
                return None, False
            if extra > most:
                most = extra
                is_later = later
                self._chosen[request.handle] = (number, later)
            if most >= wanted:
                break
        return most, is_later

    def allocated(
        self, request: Request, block_ids: Sequence[int], num_external_tokens: int
    ) -> None:
        chosen, later = self._chosen.pop(request.handle, (-1, False))
        for number, connector in enumerate(self._connectors):
            count = num_external_tokens if number == chosen else 0
            connector.allocated(request, block_ids, count)
        if later and num_external_tokens:
            self._expected.append([request.handle, [chosen]])

    def build_metadata(self) -> Any:
        self._chosen.clear()
        parts = [connector.build_metadata() for connector in self._connectors]
        expected = self._expected
        self._expected = []
        if not expected and all(part is None for part in parts):
            return None
        return [parts, expected]

    def finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        keeping = []
        parameters: dict[str, Any] = {}
        for number, connector in enumerate(self._connectors):
            keeps, given = connector.finished(request, block_ids)
            if keeps:
                keeping.append(number)
            parameters |= given or {}
        if keeping:
            self._expected.append([request.handle, keeping])
        return bool(keeping), parameters or None

    def reset(self) -> bool:
        was_possible = True
        for connector in self._connectors:
            was_possible &= connector.reset()
        return was_possible

    def numbers(self) -> dict[str, float]:
        """Each connector's, with its name before them."""
        numbers = {}
        for name, connector in zip(self._names, self._connectors, strict=True):
            for key, value in connector.numbers().items():
                numbers[f"{name}.{key}"] = value
        return numbers

    # ------------------------------------------------------------------ worker half
    def bind(self, blocks: BlockStore) -> None:
        for connector in self._connectors:
            connector.bind(blocks)

    def load(self, metadata: Any) -> None:
        parts, expected = metadata or self._nothing
        for handle, connectors in expected:
            self._endings.expect(handle, connectors)
        for connector, part in zip(self._connectors, parts, strict=True):
            connector.load(part)

    def save(self, metadata: Any) -> None:
        parts, _ = metadata or self._nothing
        for connector, part in zip(self._connectors, parts, strict=True):
            connector.save(part)

    def poll(self) -> tuple[Iterable[int], Iterable[int]]:
        endings = self._endings
        for number, connector in enumerate(self._connectors):
            done, failed = connector.poll()
            for handle in done:
                endings.add(number, handle, worked=True)
            for handle in failed:
                endings.add(number, handle, worked=False)
        return endings.take()

    # ------------------------------------------------------------------ both
    def shutdown(self) -> None:
        """All of them, also when one raises."""
        errors: list[Exception] = []
        for connector in self._connectors:
            try:
                connector.shutdown()
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors:
            raise errors[0]

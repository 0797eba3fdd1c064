"""The thread of one rank that copies blocks between the KV cache and a store. Worker process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from tenonry.interfaces.kv_connector import BlockStore
from tenonry_kv_connectors.stores.ended import EndedTransfers

logger = logging.getLogger("tenonry.kv_connector")
BLOCKS_AT_ONCE = 32  # bounds the bytes that are neither in the cache nor in the store
Pairs = Sequence[Sequence[Any]]  # [name, block id] each


class Store(Protocol):
    """Bytes under names. All calls but `close` come from one thread, in the order in which the engine sent them."""

    def wants(self, name: bytes) -> bool:
        """Return True if `write` would keep it: False if it is stored already, or if there is no room."""
        ...

    def read(self, name: bytes) -> bytes | None:
        """Data written under this name, whole and unchanged, or None."""
        ...

    def write(self, name: bytes, data: bytes) -> None:
        """Keep it, if possible."""
        ...

    def follow(self, orders: Any) -> None:
        """Execute the index's orders."""
        ...

    def close(self) -> None:
        """Release everything; called once, from the thread that stops the mover."""
        ...


class Mover:
    """Takes jobs from the step and does them in order. `name` is the connector's, for the log."""

    def __init__(self, blocks: BlockStore, store: Store, name: str) -> None:
        self._blocks = blocks
        self._store = store
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._ended = EndedTransfers()
        self._closing = False
        self._num_failed_loads = 0
        self._thread = threading.Thread(target=self._run, name=f"kv-connector-{name}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ called by the step
    def load(self, handle: int, pairs: Pairs) -> None:
        """Bring these blocks into the cache."""
        self._jobs.put(lambda: self._load(handle, pairs))

    def save(self, handle: int, pairs: Pairs) -> None:
        """Write these blocks to the store."""
        self._jobs.put(lambda: self._save(handle, pairs))

    def follow(self, orders: Any) -> None:
        """Pass the index's orders on."""
        self._jobs.put(lambda: self._store.follow(orders))

    def ended(self) -> tuple[list[int], list[int]]:
        """Handles whose transfer ended since the last call: (done, failed)."""
        return self._ended.take()

    def close(self) -> None:
        """Finish the saves, give up the loads, and release the store."""
        self._closing = True
        self._jobs.put(None)
        self._thread.join()
        self._store.close()

    # ------------------------------------------------------------------ in the thread
    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                logger.exception("KV connector '%s': a job of the store failed", self._name)

    def _load(self, handle: int, pairs: Pairs) -> None:
        worked = False
        try:
            if not self._closing:
                # All of them, since reading a damaged block removes it, so that it is saved anew.
                loaded = [self._load_part(part) for part in _parts(pairs)]
                worked = all(loaded)
        except Exception:
            logger.exception("KV connector '%s': a load failed", self._name)
        finally:
            self._ended.add(handle, worked)
        if not worked and not self._closing:
            self._note_failure()

    def _load_part(self, pairs: Pairs) -> bool:
        found = [self._store.read(name) for name, _ in pairs]
        whole = [data for data in found if data is not None]
        if len(whole) < len(found):
            return False
        self._blocks.write([block for _, block in pairs], whole)
        return True

    def _note_failure(self) -> None:
        if self._num_failed_loads == 0:
            logger.warning(
                "KV connector '%s': stored blocks are missing or damaged; computing their "
                "tokens instead",
                self._name,
            )
        self._num_failed_loads += 1

    def _save(self, handle: int, pairs: Pairs) -> None:
        worked = False
        try:
            for part in _parts([pair for pair in pairs if self._store.wants(pair[0])]):
                contents = self._blocks.read([block for _, block in part])
                for (name, _), data in zip(part, contents, strict=True):
                    self._store.write(name, data)
            worked = True
        except Exception:
            logger.exception("KV connector '%s': a save failed", self._name)
        finally:
            self._ended.add(handle, worked)


def _parts(pairs: Pairs) -> Iterator[Pairs]:
    """A few blocks at a time, the last ones first: what is touched last goes last, and no block is of use without
    those before it.
    """
    backwards = pairs[::-1]
    for start in range(0, len(backwards), BLOCKS_AT_ONCE):
        yield backwards[start : start + BLOCKS_AT_ONCE]

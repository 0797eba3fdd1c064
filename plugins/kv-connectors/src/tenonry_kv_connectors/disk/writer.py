"""Writes files concurrently with steps, and deletes the oldest above the size limit. Worker process."""

from __future__ import annotations

import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tenonry_kv_connectors.disk.folder import MODE

logger = logging.getLogger("tenonry.kv_connector.disk")
DRAFT = ".part"
STALE_S = 600.0  # drafts of processes that were killed
SHARE_OF_SIZE = 16  # files are counted anew whenever this part of the size limit was written


class StoredFile(NamedTuple):
    """A file of the store."""

    time_ns: int
    size: int
    path: str


class DiskWriter:
    """A thread that writes what it is given, in order.

    `folders`: the root, below which `rank_name` names the folders of this rank. `limit`: bytes of all their files.
    `max_staged`: bytes that wait to be written; what comes beyond is not kept, so that a slow disk costs hits and never
    memory or time. After an error of the disk nothing more is written.
    """

    def __init__(
        self, root: Path, rank_name: str, limit: int, max_staged: int, *, syncs: bool
    ) -> None:
        self._root = root
        self._rank_name = rank_name
        self._limit = limit
        self._max_staged = max_staged
        self._syncs = syncs
        self._staged: dict[Path, bytes] = {}
        self._staged_bytes = 0
        self._lock = threading.Lock()
        self._paths: SimpleQueue[tuple[Path, bytes] | None] = SimpleQueue()
        self._stopped = False
        self._uncounted = 0
        self._thread = threading.Thread(
            target=self._run, name="kv-connector-disk-writer", daemon=True
        )
        self._thread.start()

    # ------------------------------------------------------------------ called by the mover
    def wants(self, path: Path) -> bool:
        """Return True if `put` would accept the file."""
        if self._stopped or self._staged_bytes >= self._max_staged:
            return False
        return path not in self._staged and not path.exists()

    def put(self, path: Path, header: bytes, content: bytes) -> None:
        """Write the file soon, if there is room among what waits."""
        size = len(header) + len(content)
        with self._lock:
            if path in self._staged or self._staged_bytes + size > self._max_staged:
                return
            self._staged[path] = content
            self._staged_bytes += size
        self._paths.put((path, header))

    def staged(self, path: Path) -> bytes | None:
        """The content of a file that is not written yet."""
        return self._staged.get(path)

    def close(self) -> None:
        """Write what waits, and stop."""
        self._paths.put(None)
        self._thread.join()

    # ------------------------------------------------------------------ in the thread
    def _run(self) -> None:
        self._attempt(self._trim)
        while (item := self._paths.get()) is not None:
            path, header = item
            content = self._staged[path]
            if not self._stopped:
                self._attempt(lambda: self._write(path, header, content))  # noqa: B023 - called here
            with self._lock:
                del self._staged[path]
                self._staged_bytes -= len(header) + len(content)

    def _attempt(self, work: Callable[[], None]) -> None:
        """An error of the disk, as one that is full, ends the writing, and not the engine."""
        try:
            work()
        except FileNotFoundError:
            logger.debug(
                "KV connector 'disk': a folder was removed by a reset; one block is not saved"
            )
        except OSError as error:
            self._stopped = True
            logger.error(  # noqa: TRY400 - one line
                "KV connector 'disk': %s; no more blocks are saved until the engine restarts", error
            )

    def _write(self, path: Path, header: bytes, content: bytes) -> None:
        """Under another name first: a file is found whole or not at all."""
        path.parent.mkdir(mode=MODE, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.stem}.{secrets.token_hex(8)}{DRAFT}")
        try:
            number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(number, "wb") as file:
                file.write(header)
                file.write(content)
                file.flush()
                if self._syncs:
                    os.fsync(file.fileno())
                touch(file.fileno())
            draft.rename(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        self._uncounted += len(header) + len(content)
        if self._uncounted * SHARE_OF_SIZE >= self._limit:
            self._trim()

    def _trim(self) -> None:
        """Delete the files that were used least recently, until the others fit, with room for what is written next."""
        self._uncounted = 0
        files = self._files()
        excess = sum(file.size for file in files) - (self._limit - self._limit // SHARE_OF_SIZE)
        stale = time.time_ns() - int(STALE_S * 1e9)
        for file in sorted(files):
            is_stale = file.path.endswith(DRAFT) and file.time_ns < stale
            if excess <= 0 and not is_stale:
                continue
            Path(file.path).unlink(missing_ok=True)
            excess -= file.size

    def _files(self) -> list[StoredFile]:
        """Files of this rank, of all models; other engines may add and delete some concurrently."""
        found: list[StoredFile] = []
        for model in _folders(self._root):
            for part in _folders(os.path.join(model, self._rank_name)):  # noqa: PTH118 - hot
                found += _files_in(part)
        return found


def touch(file: int | Path) -> None:
    """Used now."""
    now = time.time_ns()
    os.utime(file, ns=(now, now))


def _folders(path: str | Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _files_in(path: str) -> list[StoredFile]:
    found = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if not stat.S_ISREG(status.st_mode):
                    logger.warning("KV connector 'disk': %s is not a file; ignored", entry.path)
                    continue
                found.append(StoredFile(status.st_mtime_ns, status.st_size, entry.path))
    except FileNotFoundError:
        pass
    return found

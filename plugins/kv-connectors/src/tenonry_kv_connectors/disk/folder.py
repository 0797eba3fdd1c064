"""The directory of the blocks, which must be the user's alone, and where each file stands in it. Any process.

    DIRECTORY/MODEL/RANK-of-RANKS/FF/FF….block

MODEL stands for the identity of model and configuration, so engines of several models can share a directory. Who can
write to the directory can put K/V of their choice under a prompt's name: it is refused where others could.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import stat
from pathlib import Path

from tenonry.errors import ConfigError

logger = logging.getLogger("tenonry.kv_connector.disk")
MODE = 0o700
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
MODEL_BYTES = 8  # leading bytes of a name: its model
SUFFIX = ".block"
EPOCH_BYTES = 16
EPOCH = "epoch"


def open_private(directory: Path) -> Path:
    """The directory, resolved, and made if it was not there. Raises ConfigError unless it is this user's alone."""
    try:
        directory.mkdir(mode=MODE, parents=True, exist_ok=True)
        path = directory.resolve()
        _check_owner(path)
        for parent in path.parents:
            _check_parent(parent, path)
    except OSError as error:
        raise ConfigError(
            f"KV connector 'disk': directory {directory} cannot be used: {error}"
        ) from None
    return path


def _check_owner(path: Path) -> None:
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode) or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(
            f"KV connector 'disk': {path} is not a directory that this user can write to"
        )
    if status.st_uid != os.geteuid() or status.st_mode & OTHERS_WRITE:
        raise ConfigError(
            f"KV connector 'disk': directory {path} (owner {status.st_uid}, mode {status.st_mode & 0o777:o}) can be "
            f"written by others, who could put false K/V under a prompt's name; it must belong to user "
            f"{os.geteuid()}: chmod 700 {path}"
        )


def _check_parent(parent: Path, path: Path) -> None:
    """Others must not be able to put another directory into its place."""
    status = parent.stat()
    is_open = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
    if is_open or status.st_uid not in {0, os.geteuid()}:
        raise ConfigError(
            f"KV connector 'disk': {parent} (owner {status.st_uid}, mode {status.st_mode & 0o777:o}) can be written by "
            f"others, who could replace {path}; choose a directory below one that only you can write to"
        )


class BlockFolder:
    """Paths of the files in an opened directory. `num_ranks`: of one engine."""

    def __init__(self, root: Path, num_ranks: int) -> None:
        self.root = root
        self._num_ranks = num_ranks

    def path(self, name: bytes, rank: int) -> Path:
        """The file of one rank's part of a block."""
        text = name[MODEL_BYTES:].hex()
        return self.of_rank(name[:MODEL_BYTES], rank) / text[:2] / f"{text}{SUFFIX}"

    def of_rank(self, model: bytes, rank: int) -> Path:
        """The folder of one rank's blocks of one model."""
        return self.root / model.hex() / self.rank_name(rank)

    def rank_name(self, rank: int) -> str:
        """The name of a rank's folders."""
        return f"{rank}-of-{self._num_ranks}"

    def is_stored(self, name: bytes) -> bool:
        """Return True if the parts of all ranks exist."""
        return all(self.path(name, rank).is_file() for rank in range(self._num_ranks))

    def epoch(self, model: bytes) -> bytes:
        """Key of this model's block names until the next reset, equal for all engines."""
        place = self.root / model.hex() / EPOCH
        try:
            place.parent.mkdir(mode=MODE, exist_ok=True)
            with contextlib.suppress(FileExistsError), place.open("xb") as file:
                file.write(secrets.token_bytes(EPOCH_BYTES))
            with place.open("rb") as file:
                return file.read(EPOCH_BYTES)
        except OSError as error:
            logger.warning(
                "KV connector 'disk': %s; blocks of earlier runs cannot be used; remove the file",
                error,
            )
            return secrets.token_bytes(EPOCH_BYTES)

    def forget(self, model: bytes) -> None:
        """No block of this model is found again: a new epoch, and its files are removed."""
        folder = self.root / model.hex()
        with contextlib.suppress(OSError):  # something else stands in its place
            (folder / EPOCH).unlink(missing_ok=True)
        for place in folder.glob("*"):
            if place.is_dir():
                shutil.rmtree(place, ignore_errors=True)

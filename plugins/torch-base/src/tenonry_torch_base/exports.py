"""Stores the names that transformers exports, for which it reads the sources of all its models. Worker process.

A file of the user's cache belongs to one installation, by its RECORD and the time of the folder of models. A source
tree has no RECORD next to it, and is read each time; an edit of a single installed file remains unnoticed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenonry_hf_hub import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    # Required libraries → module → names.
    Exports = dict[frozenset[str], dict[str, set[str]]]

FOLDER = "exports"
RECORDS = "*.dist-info/RECORD"
DIGEST_LETTERS = 16


def stored_exports(define: Callable[..., Exports]) -> Callable[..., Exports]:
    """Transformers' `define_import_structure`, with a file for folders of an installation."""

    def call(module_path: str | Path, prefix: str | None = None) -> Exports:
        path = Path(module_path)
        file = _file(path.parent if path.suffix else path, prefix)
        if file is None:
            return define(module_path, prefix)
        found = _read(file)
        if not found:
            found = define(module_path, prefix)
            _write(file, found)
        return found

    return call


def _file(folder: Path, prefix: str | None) -> Path | None:
    """The file for this folder; None if it is no folder of one installed package, or the user has no home."""
    package = folder.parent
    records = list(package.parent.glob(f"{package.name}-{RECORDS}"))
    if len(records) != 1:
        return None
    try:
        key = f"{folder}\0{prefix}\0{folder.stat().st_mtime_ns}\0".encode()
        digest = hashlib.sha256(key + records[0].read_bytes()).hexdigest()[:DIGEST_LETTERS]
        return cache_folder(FOLDER) / f"{package.name}-{digest}.json"
    except (OSError, RuntimeError):  # RuntimeError: of pathlib, for a user id without an entry
        return None


def _read(file: Path) -> Exports | None:
    """None if there is none, or it is damaged."""
    try:
        rows: Any = json.loads(file.read_bytes())
        return {
            frozenset(libraries): {module: set(names) for module, names in modules.items()}
            for libraries, modules in rows
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _write(file: Path, exports: Exports) -> None:
    """Replace the file, unless its folder cannot be written or another release of transformers has other values."""
    with contextlib.suppress(OSError, TypeError, AttributeError):
        rows = [
            [sorted(libraries), {module: sorted(names) for module, names in modules.items()}]
            for libraries, modules in exports.items()
        ]
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=file.parent) as folder:
            made = Path(folder) / file.name
            made.write_text(json.dumps(rows), "utf-8")
            made.rename(file)

"""Resolves the user's model name to a local folder: registered names, folders, GGUF files, hub ids.

Front end, at start-up.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tenonry.config import EngineConfig
from tenonry.errors import ModelError
from tenonry.plugin.manager import resolve_point
from tenonry_hf_hub.gguf import folder_of, is_gguf
from tenonry_hf_hub.located import MODELS, Located, nearest, registered_names

# What the hub accepts as a repository name: one or two parts of word characters, dots and dashes.
HUB_ID = re.compile(r"^[\w][\w.-]{0,95}(/[\w][\w.-]{0,95})?$", re.ASCII)


def locate_model(config: EngineConfig) -> Located:
    """Folder of `config.model`, downloaded if necessary. Raises ModelError with the accepted forms."""
    return locate(config.model, config.revision, weights=config.load_format != "dummy")


def locate_tokenizer(config: EngineConfig, model: Located) -> Located:
    """The folder of the tokenizer: `config.tokenizer`, or the model's own."""
    if config.tokenizer is None or config.tokenizer == config.model:
        return model
    return locate(config.tokenizer, None, weights=False)


def locate(name: str, revision: str | None = None, *, weights: bool = True) -> Located:
    """`name` as a registered name, a folder or GGUF file, or a hub id, in this order; `./name` is always the folder."""
    if name in registered_names() or (":" in name and "/" not in name):
        return _registered(name)
    folder = Path(name).expanduser()
    if folder.exists() or _looks_like_path(name):
        return Located(_checked_folder(folder, name))
    if HUB_ID.match(name):
        from tenonry_hf_hub.hub import fetch

        return fetch(name, revision, weights=weights)
    raise ModelError(
        f"model '{name}' is no registered name, no folder (looked at {folder.absolute()}) and not written like a hub "
        f"id (ORGANISATION/NAME){nearest(name)}"
    )


def _registered(name: str) -> Located:
    function, entry = resolve_point(MODELS, name)
    found = function() if callable(function) else function
    if isinstance(found, str | os.PathLike):
        found = Located(Path(found))
    if not isinstance(found, Located):
        raise ModelError(
            f"{entry.label()} answered with a {type(found).__name__}; it must return the path of a folder"
        )
    return found._replace(path=_checked_folder(found.path, name))


def _looks_like_path(name: str) -> bool:
    return (
        name.startswith((".", "/", "~"))
        or name.endswith("/")
        or "\\" in name
        or name.count("/") > 1
    )


def _checked_folder(folder: Path, name: str) -> Path:
    folder = folder.absolute()
    if not folder.exists():
        raise ModelError(
            f"model '{name}': the folder {folder} does not exist; give a folder that holds config.json, or a hub id "
            f"(ORGANISATION/NAME){nearest(name)}"
        )
    if folder.is_file() and is_gguf(folder):
        return folder_of(folder)
    if not folder.is_dir():
        raise ModelError(
            f"model '{name}': {folder} is a file; give the folder that holds config.json and *.safetensors, or a "
            "GGUF file"
        )
    if not (folder / "config.json").exists() and not _is_tokenizer_folder(folder):
        held = sorted(path.name for path in folder.iterdir())[:6]
        remedy = "give the folder that was written by save_pretrained or downloaded from the hub"
        if files := sorted(folder.glob("*.gguf")):
            remedy = f"give one file: {files[0]}"
        raise ModelError(
            f"model '{name}': {folder} has no config.json (it holds: {', '.join(held) or 'nothing'}); {remedy}"
        )
    return folder


def _is_tokenizer_folder(folder: Path) -> bool:
    return any(
        (folder / name).exists()
        for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
    )

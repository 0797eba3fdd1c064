"""Folder made from a GGUF file: JSON files as transformers writes them, and a link to the file. Front end.

It is made once, in the user's cache. Its name has a digest of the file's place and header, so a file that is replaced
by another gets another folder; weights are never copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tenonry.errors import ModelError
from tenonry_hf_hub.cache import cache_folder
from tenonry_hf_hub.gguf.families import config_of, generation_config_of
from tenonry_hf_hub.gguf.header import WEIGHTS, Header, read_header
from tenonry_hf_hub.gguf.tensors import tensors_of

FORMAT = 1  # another number whenever other files are written
TOKENS = "tokenizer.ggml.tokens"
CHILD = "tenonry_hf_hub.gguf.tokenizer"
LAST_WORDS = 500
DIGEST_LETTERS = 16


def folder_of(path: Path) -> Path:
    """The folder of a GGUF file, made first if need be. Raises ModelError for a file that cannot be served."""
    path = path.resolve()
    header = read_header(path)
    tensors_of(header, path)
    folder = cache_folder("gguf") / f"{path.stem[:80]}-{_digest(path, header)}"
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            _make(path, header, folder)
        except OSError as error:
            raise ModelError(
                f"{path}: what is read of it is kept in {folder}, which cannot be written ({error.strerror}); set "
                "XDG_CACHE_HOME to a folder that can"
            ) from None
    return folder


def _digest(path: Path, header: Header) -> str:
    digest = hashlib.sha256(f"{FORMAT}\0{path}\0".encode())
    with path.open("rb") as file:
        digest.update(file.read(header.size))
    return digest.hexdigest()[:DIGEST_LETTERS]


def _make(path: Path, header: Header, folder: Path) -> None:
    """Write a temporary folder and rename it, so that a folder is complete even if several processes make it."""
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as made:
        work = Path(made) / folder.name
        work.mkdir()
        (work / WEIGHTS).symlink_to(path)
        files = {
            "config.json": config_of(header, path),
            "generation_config.json": generation_config_of(header),
        }
        for name, content in files.items():
            (work / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
        if TOKENS in header.metadata:
            _write_tokenizer(path, work)
        try:
            work.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was first otherwise
                raise


def _write_tokenizer(path: Path, work: Path) -> None:
    """Write the tokenizer by transformers, in a separate process: the front end needs neither it nor torch."""
    child = subprocess.run(
        [sys.executable, "-P", "-m", CHILD, str(work), WEIGHTS],
        capture_output=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        check=False,
    )
    if child.returncode:
        words = child.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ModelError(
            f"{path}: transformers cannot make a tokenizer of it: {(words or ['no words'])[-1][:LAST_WORDS]}; give "
            "another folder with --tokenizer, or take the model's safetensors"
        )

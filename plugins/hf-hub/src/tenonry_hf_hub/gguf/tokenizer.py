"""Writes the tokenizer and the chat template of a GGUF file as transformers reads them. A separate process, once per
file: `python -m tenonry_hf_hub.gguf.tokenizer FOLDER FILE`.
"""

from __future__ import annotations

import sys
from types import ModuleType


def main(folder: str, name: str) -> None:
    """Into `folder`, which holds the file."""
    from transformers import AutoTokenizer

    map_files_as_arrays()
    tokenizer = AutoTokenizer.from_pretrained(
        folder, gguf_file=name, local_files_only=True, trust_remote_code=False
    )
    tokenizer.save_pretrained(folder)


def map_files_as_arrays() -> None:
    """Let the library `gguf` cut plain arrays: each of a million cuts of a `numpy.memmap` runs a Python method."""
    from gguf import gguf_reader

    np = gguf_reader.np  # type: ignore[attr-defined]
    own = ModuleType("numpy")
    vars(own).update(vars(np), memmap=lambda path, mode: np.asarray(np.memmap(path, mode=mode)))
    gguf_reader.np = own  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(*sys.argv[1:])

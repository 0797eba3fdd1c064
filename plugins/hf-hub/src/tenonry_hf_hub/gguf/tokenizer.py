"""Writes the tokenizer and the chat template of a GGUF file as transformers reads them. A process of its own, once per
file: `python -m tenonry_hf_hub.gguf.tokenizer FOLDER FILE`.
"""

from __future__ import annotations

import sys


def main(folder: str, name: str) -> None:
    """Into `folder`, which holds the file."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        folder, gguf_file=name, local_files_only=True, trust_remote_code=False
    )
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""GGUF: one file that holds a model's weights, facts and tokenizer. Front end and workers.

`folder_of` makes the folder that all other code reads: JSON files made of the file's metadata beside a link to the
file. `read_tensors` says where its weights are, under the names that transformers has for them.
"""

from __future__ import annotations

from tenonry_hf_hub.gguf.folder import folder_of
from tenonry_hf_hub.gguf.header import WEIGHTS, is_gguf
from tenonry_hf_hub.gguf.tensors import GgufTensor, read_tensors

__all__ = ["WEIGHTS", "GgufTensor", "folder_of", "is_gguf", "read_tensors"]

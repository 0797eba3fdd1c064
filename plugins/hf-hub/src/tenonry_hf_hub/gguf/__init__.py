"""GGUF: one file that holds a model's weights, facts and tokenizer. Front end and workers.

`folder_of` creates the folder that all other code reads: JSON files made of the file's metadata, and a link to the
file. `read_tensors` locates its weights, under their names in transformers.
"""

from __future__ import annotations

from tenonry_hf_hub.gguf.folder import folder_of
from tenonry_hf_hub.gguf.header import WEIGHTS, is_gguf
from tenonry_hf_hub.gguf.tensors import GgufTensor, read_tensors

__all__ = ["WEIGHTS", "GgufTensor", "folder_of", "is_gguf", "read_tensors"]

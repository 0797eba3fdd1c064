"""A model's files and facts: a library for plugins and the hook module `hf-hub`; runs in the front end and in workers.

The functions here are the one door to a model's files. All are light: nothing heavier than msgspec is imported before a
hub id must be looked up.
"""

from __future__ import annotations

from tenonry_hf_hub.cache import cache_folder
from tenonry_hf_hub.facts import text_config
from tenonry_hf_hub.files import read_json, read_json_if_there, read_text
from tenonry_hf_hub.gguf import WEIGHTS as GGUF_WEIGHTS
from tenonry_hf_hub.gguf import GgufTensor
from tenonry_hf_hub.gguf import read_tensors as read_gguf_tensors
from tenonry_hf_hub.headers import StoredTensor, read_headers, tensor_shapes
from tenonry_hf_hub.locate import locate_model, locate_tokenizer
from tenonry_hf_hub.located import Located
from tenonry_hf_hub.remote_code import remote_code_note
from tenonry_hf_hub.sizes import check_sizes
from tenonry_hf_hub.weights import (
    WeightFiles,
    check_present,
    find_weights,
    holds_weights,
    list_weights,
)

__all__ = [
    "GGUF_WEIGHTS",
    "GgufTensor",
    "Located",
    "StoredTensor",
    "WeightFiles",
    "cache_folder",
    "check_present",
    "check_sizes",
    "find_weights",
    "holds_weights",
    "list_weights",
    "locate_model",
    "locate_tokenizer",
    "read_gguf_tensors",
    "read_headers",
    "read_json",
    "read_json_if_there",
    "read_text",
    "remote_code_note",
    "tensor_shapes",
    "text_config",
]

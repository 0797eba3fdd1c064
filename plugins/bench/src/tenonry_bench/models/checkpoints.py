"""Models that every engine can load: two shapes of Qwen3 with random weights in bfloat16. The measuring process.

They are written once: `tiny`, whose steps are mostly overhead, and `small`, which has the shape of Qwen3-0.6B. The
tokenizer splits the words of Python's own library, so that nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import struct
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tenonry.errors import ConfigError
from tenonry_hf_hub import cache_folder

PIECES = 8192  # of the tokenizer: all ids of the workloads are below it
TEXT_BYTES = 3_000_000
END = "<|endoftext|>"
DEVIATION = 0.02
AT_ONCE = 1 << 22  # numbers drawn at a time
COMMON: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1_000_000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": PIECES,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "max_position_embeddings": 4096,
    },
    "small": {
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
    },
}


def default_folder() -> Path:
    """Folder of models between benchmarks."""
    return cache_folder("bench-models")


def find_model(name: str, folder: Path) -> Path:
    """The folder of a model: `name` itself if it is one, else in `folder`, where `tiny` and `small` are written if
    they are missing. Raises ConfigError.
    """
    for place in (Path(name), folder / name):
        if (place / "config.json").is_file():
            return place
    if name not in MODELS:
        raise ConfigError(
            f"--name {name}: neither a folder with a config.json nor one of {', '.join(MODELS)}"
        )
    return write_model(name, folder / name)


def write_model(name: str, target: Path) -> Path:
    """Configuration, weights, tokenizer. Appears under its name once it is whole."""
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    config = COMMON | MODELS[name]
    write_tokenizer(partial)
    write_weights(config, partial / "model.safetensors")
    (partial / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    partial.rename(target)
    return target


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    size = config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    yield "model.embed_tokens.weight", (config["vocab_size"], width)
    for layer in range(config["num_hidden_layers"]):
        parts = {
            "input_layernorm": (width,),
            "self_attn.q_proj": (heads * size, width),
            "self_attn.k_proj": (kv_heads * size, width),
            "self_attn.v_proj": (kv_heads * size, width),
            "self_attn.o_proj": (width, heads * size),
            "self_attn.q_norm": (size,),
            "self_attn.k_norm": (size,),
            "post_attention_layernorm": (width,),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }
        for part, shape in parts.items():
            yield f"model.layers.{layer}.{part}.weight", shape
    yield "model.norm.weight", (width,)


def write_weights(config: dict[str, Any], target: Path) -> None:
    """A safetensors file: matrices are normal, norms are 1. The same numbers each time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes(config):
        end = offset + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = np.random.default_rng(20261120)
    with target.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in shapes(config):
            for piece in numbers(shape, generator):
                file.write(as_bfloat16(piece).tobytes())


def numbers(shape: tuple[int, ...], generator: np.random.Generator) -> Iterator[Any]:
    """f32 pieces of one tensor, in its order."""
    count = int(np.prod(shape))
    if len(shape) == 1:
        yield np.ones(count, dtype=np.float32)
        return
    for begin in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - begin)
        yield DEVIATION * generator.standard_normal(size, dtype=np.float32)


def as_bfloat16(values: Any) -> Any:
    """u16: the upper halves, rounded to the nearest."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer trained on the sources of Python's library."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ModuleNotFoundError as error:
        raise ConfigError(
            "writing a model takes the library tokenizers: pip install tenonry-bench[models]"
        ) from error

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sources(TEXT_BYTES), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), "utf-8")


def sources(limit: int) -> Iterator[str]:
    """Texts of about the given number of bytes."""
    root = Path(sysconfig.get_paths()["stdlib"])
    left = limit
    for path in sorted(root.glob("*.py")):
        if left <= 0:
            return
        text = path.read_text("utf-8", "replace")
        left -= len(text)
        yield text

"""Tokenizer classes whose text splitting is fixed by transformers and not by tokenizer.json. Front end, once, at start.

Release 5 of transformers takes the vocabulary, merges and added tokens of these classes from tokenizer.json, the rest
from the class and from `add_prefix_space` of tokenizer_config.json. The same is done here on the loaded tokenizer:
importing transformers would import torch too. `add_bos_token` and `add_eos_token` are ignored if there is a
tokenizer.json, there as here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenonry_io_text.tokenizer_class_names import GENERIC, OVERRIDDEN_TYPES, REGISTERED

logger = logging.getLogger("tenonry.models")

END = "<|endoftext|>"
GPT2_TOKENS = {"bos_token": END, "eos_token": END, "unk_token": END}
QWEN_TOKENS = {"eos_token": END, "unk_token": END, "pad_token": END}
LLAMA_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
GEMMA_TOKENS = {
    "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip
# The published splits of Qwen: contractions, words, digits one by one, punctuation, line breaks, spaces.
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?{word}+|\p{N}| ?[^\s{inside}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = QWEN_SPLIT.replace("{word}", r"\p{L}").replace("{inside}", r"\p{L}")
QWEN35_SPLIT = QWEN_SPLIT.replace("{word}", r"[\p{L}\p{M}]").replace("{inside}", r"\p{L}\p{M}")
SETTINGS_OF_SPLIT = ("add_prefix_space", "trim_offsets", "use_regex", "prepend_scheme")


@dataclass(frozen=True)
class TokenizerClass:
    """Parts that a class fixes. `parts` maps `add_prefix_space` to normalizer, pre-tokenizer and decoder."""

    parts: Callable[[bool], tuple[Any, Any, Any]]
    tokens: Mapping[str, str]  # special tokens that tokenizer_config.json need not name
    prefix_space: bool = False  # the default of `add_prefix_space`
    is_sentencepiece: bool = False  # unknown characters become byte tokens
    names_unknown: bool = False  # the model has an unknown token
    drops_post_processor: bool = False


def class_of(folder: Path, config: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Name of the class that `AutoTokenizer` selects for a folder with tokenizer.json, without "Fast".

    `config`: config.json. `settings`: tokenizer_config.json.
    """
    model_type = str(config.get("model_type"))
    declared = settings.get("tokenizer_class") or config.get("tokenizer_class") or ""
    declared = str(declared).removesuffix("Fast")
    registered = REGISTERED.get(model_type, "")
    if not declared:
        return registered or GENERIC
    is_overridden = model_type in OVERRIDDEN_TYPES
    if declared == "LlamaTokenizer" and not is_overridden and _has_byte_level(folder):
        return GENERIC
    if "auto_map" in settings or registered in ("", declared):
        return declared
    return registered if registered == GENERIC or is_overridden else declared


def apply_class(
    tokenizer: Any, folder: Path, config: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Set the parts of `tokenizer` that its class fixes; returns `settings` with the special tokens of the class."""
    from tokenizers.models import BPE

    name = class_of(folder, config, settings)
    fixed = CLASSES.get(name)
    if fixed is None or not isinstance(tokenizer.model, BPE):
        return dict(settings)
    settings = {**fixed.tokens, **settings}
    prefix_space = settings.get("add_prefix_space")
    normalizer, split, decoder = fixed.parts(
        fixed.prefix_space if prefix_space is None else bool(prefix_space)
    )
    if _kind(tokenizer.pre_tokenizer) != _kind(split):
        logger.warning(
            "%s: splitting text as transformers' class %s does, not as tokenizer.json; to follow tokenizer.json set "
            'tokenizer_class to "TokenizersBackend" in tokenizer_config.json',
            folder,
            name,
        )
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, split, decoder
    model = tokenizer.model
    model.dropout, model.ignore_merges = None, False
    model.fuse_unk = model.byte_fallback = fixed.is_sentencepiece
    unknown = settings["unk_token"] if fixed.names_unknown else None
    model.unk_token = unknown.get("content") if isinstance(unknown, dict) else unknown
    if fixed.drops_post_processor:
        tokenizer.post_processor = None
    return settings


def _has_byte_level(folder: Path) -> bool:
    return b'"ByteLevel"' in (folder / "tokenizer.json").read_bytes()


def _kind(split: Any) -> Any:
    """A pre-tokenizer without the settings that a class leaves to tokenizer_config.json."""
    if split is None:
        return None
    return json.loads(
        split.__getstate__(),
        object_hook=lambda part: {k: v for k, v in part.items() if k not in SETTINGS_OF_SPLIT},
    )


def _byte_level(prefix_space: bool) -> tuple[Any, Any, Any]:
    from tokenizers import decoders, pre_tokenizers

    split = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    return None, split, decoders.ByteLevel()


def _neox(prefix_space: bool) -> tuple[Any, Any, Any]:
    from tokenizers import normalizers

    return normalizers.NFC(), *_byte_level(prefix_space)[1:]


def _qwen(pattern: str) -> Callable[[bool], tuple[Any, Any, Any]]:
    def parts(prefix_space: bool) -> tuple[Any, Any, Any]:
        from tokenizers import Regex, decoders, normalizers, pre_tokenizers

        split = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=False),
            ]
        )
        return normalizers.NFC(), split, decoders.ByteLevel()

    return parts


def _gemma(_prefix_space: bool) -> tuple[Any, Any, Any]:
    from tokenizers import normalizers, pre_tokenizers

    split = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    return normalizers.Replace(" ", "▁"), split, _sentencepiece_decoder(strips=False)


def _llama(prefix_space: bool) -> tuple[Any, Any, Any]:
    from tokenizers import pre_tokenizers

    scheme = "first" if prefix_space else "never"
    split = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return None, split, _sentencepiece_decoder(strips=prefix_space)


def _sentencepiece_decoder(*, strips: bool) -> Any:
    from tokenizers import decoders

    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)


CLASSES = {
    "GPT2Tokenizer": TokenizerClass(_byte_level, GPT2_TOKENS),
    "CodeGenTokenizer": TokenizerClass(_byte_level, GPT2_TOKENS),
    "GPTNeoXTokenizer": TokenizerClass(
        _neox, GPT2_TOKENS | {"pad_token": "<|padding|>"}, drops_post_processor=True
    ),
    "Qwen2Tokenizer": TokenizerClass(_qwen(QWEN2_SPLIT), QWEN_TOKENS),
    "Qwen3_5Tokenizer": TokenizerClass(_qwen(QWEN35_SPLIT), QWEN_TOKENS),
    "GemmaTokenizer": TokenizerClass(
        _gemma, GEMMA_TOKENS, is_sentencepiece=True, names_unknown=True
    ),
    "LlamaTokenizer": TokenizerClass(
        _llama, LLAMA_TOKENS, prefix_space=True, is_sentencepiece=True
    ),
}

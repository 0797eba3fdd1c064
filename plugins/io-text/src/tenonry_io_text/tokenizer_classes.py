"""Tokenizer classes whose text splitting is fixed by transformers and not by tokenizer.json. Front end, once, at start.

Release 5 of transformers takes the vocabulary, merges and added tokens of these classes from tokenizer.json, the rest
from the class and from settings of tokenizer_config.json such as `add_prefix_space`. The same is done here on the
loaded tokenizer: importing transformers would import torch too. `add_bos_token` and `add_eos_token` are ignored if
there is a tokenizer.json, there as here.
"""

from __future__ import annotations

import base64
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
COHERE_TOKENS = {
    "bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>", "unk_token": "<UNK>", "pad_token": "<PAD>",
    "cls_token": "<CLS>", "sep_token": "<SEP>", "mask_token": "<MASK_TOKEN>",
}  # fmt: skip
BERT_TOKENS = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"
}  # fmt: skip
ROBERTA_TOKENS = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>",
    "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip
T5_TOKENS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
SETTINGS_OF_SPLIT = ("add_prefix_space", "trim_offsets", "use_regex", "prepend_scheme")


@dataclass(frozen=True)
class TokenizerClass:
    """Parts that a class fixes. `parts` maps settings to normalizer, pre-tokenizer and decoder."""

    parts: Callable[[Mapping[str, Any]], tuple[Any, Any, Any]]
    tokens: Mapping[str, str]  # special tokens that tokenizer_config.json need not name
    model: str = "BPE"
    ends: Callable[[Any, Mapping[str, str]], Any] | None = None  # post-processor by special tokens
    keeps_normalizer: bool = False  # the part of tokenizer.json that is a table of characters
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
    name = class_of(folder, config, settings)
    fixed = CLASSES.get(name)
    if fixed is None or type(tokenizer.model).__name__ != fixed.model:
        return dict(settings)
    settings = {**fixed.tokens, **settings}
    if settings.get("add_prefix_space") is None:
        settings["add_prefix_space"] = fixed.prefix_space
    normalizer, split, decoder = fixed.parts(settings)
    if fixed.keeps_normalizer:
        normalizer = _table_of(tokenizer.normalizer)
    if _kind(tokenizer.pre_tokenizer) != _kind(split):
        logger.warning(
            "%s: splitting text as transformers' class %s does, not as tokenizer.json; to follow tokenizer.json set "
            'tokenizer_class to "TokenizersBackend" in tokenizer_config.json',
            folder,
            name,
        )
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, split, decoder
    names = {key: _name(value) for key, value in settings.items() if key in fixed.tokens}
    if fixed.model == "BPE":
        model = tokenizer.model
        model.dropout, model.ignore_merges = None, False
        model.fuse_unk = model.byte_fallback = fixed.is_sentencepiece
        model.unk_token = names["unk_token"] if fixed.names_unknown else None
    if fixed.drops_post_processor:
        tokenizer.post_processor = None
    if fixed.ends is not None:
        tokenizer.post_processor = fixed.ends(tokenizer, names)
    return settings


def _name(token: Any) -> Any:
    """The text of a special token, which may be given with flags."""
    return token.get("content") if isinstance(token, dict) else token


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


def _table_of(normalizer: Any) -> Any:
    """The table of characters of a SentencePiece model; None without one."""
    from tokenizers import normalizers

    state = json.loads(normalizer.__getstate__()) if normalizer is not None else {}
    steps = state["normalizers"] if state.get("type") == "Sequence" else [state]
    for step in steps:
        if table := step.get("precompiled_charsmap"):
            return normalizers.Precompiled(base64.b64decode(table))
    return None


def _byte_level(settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    from tokenizers import decoders, pre_tokenizers

    split = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings["add_prefix_space"]))
    return None, split, decoders.ByteLevel()


def _neox(settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    from tokenizers import normalizers

    return normalizers.NFC(), *_byte_level(settings)[1:]


def _cohere(settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    from tokenizers import normalizers, pre_tokenizers

    _, split, decoder = _byte_level(settings)
    digits = pre_tokenizers.Digits(individual_digits=True)
    return normalizers.NFC(), pre_tokenizers.Sequence([digits, split]), decoder


def _bert(settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    from tokenizers import decoders, normalizers, pre_tokenizers

    normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    return normalizer, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix="##")


def _words_of_pieces(settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    from tokenizers import decoders, pre_tokenizers

    scheme = "always" if settings["add_prefix_space"] else "never"
    pieces = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    split = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pieces])
    return None, split, decoders.Metaspace(prepend_scheme=scheme)


def _t5(_settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return _words_of_pieces({"add_prefix_space": True})


def _around(single: str, pair: str) -> Callable[[Any, Mapping[str, str]], Any]:
    """A post-processor that puts special tokens, named as in settings, around one text and around two."""

    def ends(tokenizer: Any, names: Mapping[str, str]) -> Any:
        from tokenizers import processors

        used = [name for key, name in names.items() if f"{{{key}}}" in pair]
        ids = {name: tokenizer.token_to_id(name) for name in used if name}
        if len(ids) < len(set(used)) or None in ids.values():
            return tokenizer.post_processor
        return processors.TemplateProcessing(
            single=single.format(**names), pair=pair.format(**names), special_tokens=[*ids.items()]
        )

    return ends


def _qwen(pattern: str) -> Callable[[Mapping[str, Any]], tuple[Any, Any, Any]]:
    def parts(settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        from tokenizers import Regex, decoders, normalizers, pre_tokenizers

        split = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(
                    add_prefix_space=bool(settings["add_prefix_space"]), use_regex=False
                ),
            ]
        )
        return normalizers.NFC(), split, decoders.ByteLevel()

    return parts


def _gemma(_settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    from tokenizers import normalizers, pre_tokenizers

    split = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    return normalizers.Replace(" ", "▁"), split, _sentencepiece_decoder(strips=False)


def _llama(settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    from tokenizers import pre_tokenizers

    prefix_space = bool(settings["add_prefix_space"])
    scheme = "first" if prefix_space else "never"
    split = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return None, split, _sentencepiece_decoder(strips=prefix_space)


def _sentencepiece_decoder(*, strips: bool) -> Any:
    from tokenizers import decoders

    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)


CLASSES = {
    "BertTokenizer": TokenizerClass(
        _bert,
        BERT_TOKENS,
        "WordPiece",
        _around(
            "{cls_token}:0 $A:0 {sep_token}:0",
            "{cls_token}:0 $A:0 {sep_token}:0 $B:1 {sep_token}:1",
        ),
    ),
    "CohereTokenizer": TokenizerClass(_cohere, COHERE_TOKENS),
    "RobertaTokenizer": TokenizerClass(
        _byte_level,
        ROBERTA_TOKENS,
        ends=_around(
            "{cls_token} $A {sep_token}", "{cls_token} $A {sep_token} {sep_token} $B {sep_token}"
        ),
    ),
    "T5Tokenizer": TokenizerClass(
        _t5,
        T5_TOKENS,
        "Unigram",
        _around("$A {eos_token}", "$A {eos_token} $B {eos_token}"),
        keeps_normalizer=True,
        prefix_space=True,
    ),
    "XLMRobertaTokenizer": TokenizerClass(
        _words_of_pieces,
        ROBERTA_TOKENS,
        "Unigram",
        _around(
            "{bos_token} $A {eos_token}", "{bos_token} $A {eos_token} {eos_token} $B {eos_token}"
        ),
        keeps_normalizer=True,
        prefix_space=True,
    ),
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

"""Reads a model's facts out of its JSON files: length, vocabulary, end tokens. Front end, at start-up.

Every rule here is about how the field writes config.json; none needs torch or transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tenonry.errors import ModelError
from tenonry_hf_hub.headers import tensor_shapes
from tenonry_hf_hub.remote_code import remote_code_note
from tenonry_hf_hub.rope import scaled_length
from tenonry_hf_hub.weights import find_weights

logger = logging.getLogger("tenonry.models")

NESTED = ("text_config", "llm_config", "language_config", "text_model_config", "decoder")
LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "max_seq_length",
    "seq_length",
    "seq_len",
    "model_max_length",
    "max_target_positions",
    "n_ctx",
)
# Models whose published config.json leaves the length to the default of their class.
KNOWN_LENGTHS = {"gemma3": 131_072, "gemma3_text": 131_072}
# Families whose positions begin behind the padding token's id, so that a row of their table and one for each id up to
# it are never used: 514 rows, padding id 1, 512 tokens.
SHIFTED_POSITIONS = {
    "camembert",
    "data2vec-text",
    "ibert",
    "longformer",
    "luke",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}
# The same for the rows of the embedding.
KNOWN_VOCABULARIES = {"gemma3": 262_208}
FALLBACK_LENGTH = 2048
EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "embed_in.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
)


def architecture(config: dict[str, Any], path: Path) -> str:
    """The first of `architectures`, or the model type. Raises ModelError if config.json names neither."""
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type and not config.get("auto_map"):
        return model_type
    note = remote_code_note(config)
    raise ModelError(
        f"{path} does not say which architecture the model has (no 'architectures'"
        + (f"; {note})" if note else " and no 'model_type'); is this the model's main folder?")
    )


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of config.json that describes the language model: nested in multimodal models."""
    for key in NESTED:
        if isinstance(config.get(key), dict):
            return dict(config[key])
    return config


def _first(key: str, *places: dict[str, Any]) -> Any:
    return next((place[key] for place in places if place.get(key) is not None), None)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31


def max_model_len(config: dict[str, Any], tokenizer_config: dict[str, Any]) -> int:
    """Maximum sequence length in tokens: the smallest in config.json, rope scaling applied; else the tokenizer's; else
    2048, with a warning.
    """
    text = text_config(config)
    lengths = [
        place[key] for place in (text, config) for key in LENGTH_KEYS if _is_count(place.get(key))
    ]
    if lengths and text.get("model_type") in SHIFTED_POSITIONS:
        return max(1, min(lengths) - _padding_id(text) - 1)
    if lengths:
        return scaled_length(min(lengths), text)
    known = KNOWN_LENGTHS.get(str(config.get("model_type"))) or tokenizer_config.get(
        "model_max_length"
    )
    # tokenizers without a limit have 1e30
    if known is not None and _is_count(known) and known < 1 << 28:
        return int(known)
    logger.warning(
        "config.json has no maximum sequence length; assuming %d tokens. Set max_model_len.",
        FALLBACK_LENGTH,
    )
    return FALLBACK_LENGTH


def length_of_texts(longest: int, transformer: dict[str, Any], tokenizer: dict[str, Any]) -> int:
    """Truncation length of sentence-transformers, if less than `longest`, the model's own limit.

    `transformer` is its sentence_bert_config.json, which takes precedence over the tokenizer's limit.
    """
    limit = transformer.get("max_seq_length") or tokenizer.get("model_max_length")
    return min(longest, limit) if _is_count(limit) else longest


def _padding_id(text: dict[str, Any]) -> int:
    """The value in config.json, else 1, which is the default of these families."""
    found = text.get("pad_token_id", 1)
    return found if isinstance(found, int) and found >= 0 else 1


def vocab_size(config: dict[str, Any], folder: Path) -> int:
    """Rows of the embedding: from config.json, else from the header of the weights, else known. Raises ModelError."""
    text = text_config(config)
    for key in ("vocab_size", "padded_vocab_size", "n_vocab"):
        found = _first(key, text, config)
        if _is_count(found):
            return int(found)
    try:
        return _embedding_rows(folder)
    except ModelError:
        if known := KNOWN_VOCABULARIES.get(str(config.get("model_type"))):
            return known
        raise


def _embedding_rows(folder: Path) -> int:
    try:
        files = find_weights(folder).files
    except ModelError:
        files = ()
    for path in files:
        for name, shape in tensor_shapes(path).items():
            if name.endswith(EMBEDDINGS) and len(shape) == 2:
                return shape[0]
    raise ModelError(
        f"{folder / 'config.json'} has no vocab_size, and the weights show no embedding to count; add it"
    )


def eos_token_ids(
    config: dict[str, Any], generation: dict[str, Any], tokenizer_config: dict[str, Any], vocab: int
) -> tuple[int, ...]:
    """All tokens that end a generation: those of generation_config.json first, then config.json, then the tokenizer's.

    The union, because chat models often name the end of a turn in one of the three files only.
    """
    named = [
        generation.get("eos_token_id"),
        _first("eos_token_id", config, text_config(config)),
        _tokenizer_eos(tokenizer_config),
    ]
    found = dict.fromkeys(token_id for value in named for token_id in _ids(value))
    return tuple(token_id for token_id in found if 0 <= token_id < vocab)


def check_end_tokens(
    config: dict[str, Any], generation: dict[str, Any], vocab: int, folder: Path
) -> None:
    """Raise ModelError if a model has no end token and a file names one that it can never produce."""
    places = {
        "generation_config.json": generation.get("eos_token_id"),
        "config.json": _first("eos_token_id", config, text_config(config)),
    }
    for name, value in places.items():
        for token_id in _ids(value):
            if token_id >= vocab:
                raise ModelError(
                    f"{folder / name}: eos_token_id {token_id} is outside the vocabulary, ids 0 to {vocab - 1}, so "
                    "no answer would ever end; correct it, or remove it if the model has no end token"
                )


def _ids(value: object) -> Iterator[int]:
    values: Iterable[object] = value if isinstance(value, list) else (value,)
    yield from (item for item in values if isinstance(item, int) and not isinstance(item, bool))


def _tokenizer_eos(tokenizer_config: dict[str, Any]) -> int | None:
    token = tokenizer_config.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    added = tokenizer_config.get("added_tokens_decoder")
    if not text or not isinstance(added, dict):
        return None
    for key, entry in added.items():
        if isinstance(entry, dict) and entry.get("content") == text and key.isdecimal():
            return int(key)
    return None


def dtype(config: dict[str, Any]) -> str:
    """The data type of the saved weights, as torch names it; float32 when config.json is silent."""
    found = _first("dtype", config, text_config(config)) or _first(
        "torch_dtype", config, text_config(config)
    )
    return found.removeprefix("torch.") if isinstance(found, str) else "float32"

"""The tokenizer as llguidance gets it, which encodes any text as ordinary tokens of that very text. Pure.

Text that a grammar forces is encoded by the library's copy of the tokenizer. A usual tokenizer reads the name of a
special token in a text as the token, so that `<|im_end|>` in a choice would end the answer; and it may change a text:
compose accents, or put a space in front. The copy knows special tokens by names that no text contains, and changes
nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from tenonry_grammars.base import GrammarError
from tenonry_grammars.special import special_tokens

Part = dict[str, msgspec.Raw]
CHANGES_TEXT = frozenset({
    "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Lowercase", "StripAccents", "Strip", "BertNormalizer",
})  # fmt: skip


def faithful_tokenizer(tokenizer_json: str) -> tuple[str, dict[str, int]]:
    """The tokenizer for the library, and the ids of its special tokens by their own names. Raises GrammarError."""
    try:
        data = msgspec.json.decode(tokenizer_json, type=Part)
        added = _decoded(data.get("added_tokens"), list[dict[str, Any]]) or []
        ids = special_tokens(added)
        nonce = secrets.token_hex(8)  # a request cannot know the names
        renamed = {name: f"<{nonce}:{token_id}>" for name, token_id in ids.items()}
        data["added_tokens"] = _encoded([_added_token(token, renamed) for token in added])
        data["model"] = _encoded(_model(_decoded(data["model"], Part), renamed))
        for step in ("normalizer", "pre_tokenizer"):
            data[step] = _encoded(_faithful(_decoded(data.get(step), dict[str, Any] | None)))
        data["post_processor"] = _encoded(None)  # it adds special tokens
        return msgspec.json.encode(data).decode(), ids
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError) as error:
        raise GrammarError(f"llguidance cannot read the tokenizer: {error}") from None


def _added_token(token: dict[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    name = renamed.get(token["content"])
    if name is None:
        return token
    return {**token, "content": name, "special": True, "normalized": False}


def _model(model: Part, renamed: Mapping[str, str]) -> Part:
    """The model with these tokens renamed, where its own vocabulary has them, too."""
    vocab = _decoded(model["vocab"], dict[str, int] | list[tuple[str, float]])
    if isinstance(vocab, list):  # Unigram
        if not any(piece in renamed for piece, _ in vocab):
            return model
        pieces = [(renamed.get(piece, piece), score) for piece, score in vocab]
        return {**model, "vocab": _encoded(pieces)}
    if not renamed.keys() & vocab.keys():
        return model
    changed = {
        **model,
        "vocab": _encoded({renamed.get(name, name): i for name, i in vocab.items()}),
    }
    unknown = _decoded(model.get("unk_token"), str | None)
    if unknown in renamed:
        changed["unk_token"] = _encoded(renamed[unknown])
    if "merges" in model:
        merges = _decoded(model["merges"], list[str | tuple[str, str]])
        kept = [merge for merge in merges if _merged(merge) not in renamed]
        changed["merges"] = _encoded(kept)
    return changed


def _faithful(step: dict[str, Any] | None) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer without what changes a text, other than how its spaces are written."""
    if step is None or step["type"] in CHANGES_TEXT:
        return None
    kept = {**step, "add_prefix_space": False} if "add_prefix_space" in step else dict(step)
    for parts in {"normalizers", "pretokenizers"} & kept.keys():
        kept[parts] = [part for part in map(_faithful, kept[parts]) if part is not None]
    return kept


def _merged(merge: str | tuple[str, str]) -> str:
    """The token that a rule of BPE makes; its two parts stand in a text with a space between, or in a pair."""
    first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
    return first + second


def _decoded(raw: msgspec.Raw | None, kind: Any) -> Any:
    return None if raw is None else msgspec.json.decode(raw, type=kind)


def _encoded(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))

"""Checks that two models have the same token ids. Worker process; reads tokenizer files, no weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tenonry.errors import ModelError
from tenonry_hf_hub import read_json

MAX_BYTES = (
    256 << 20
)  # of a tokenizer.json: vocabularies reach 256 000 tokens, with all their merges
FILE = "tokenizer.json"


def vocabulary_difference(
    served: Path, num_served: int, drafting: Path, num_drafting: int
) -> str | None:
    """Difference between the vocabularies of the served and the draft model; None if they are equal.

    `served`, `drafting`: folders of their tokenizers; `num_served`, `num_drafting`: lines of their output layers. If
    both folders have a tokenizer.json, its tokens decide: output layers of one family are padded to various sizes. Else
    the sizes do. Raises ModelError for a file that cannot be read.
    """
    if not ((served / FILE).exists() and (drafting / FILE).exists()):
        if num_served == num_drafting:
            return None
        return f"it has {num_drafting} token ids, and the model that is served has {num_served}"
    own = tokens_of(served / FILE)
    other = tokens_of(drafting / FILE)
    for token_id in sorted(own.keys() | other.keys()):
        token = own.get(token_id)
        found = other.get(token_id)
        if token != found:
            return (
                f"token id {token_id} is {_shown(found)} in its tokenizer.json, and {_shown(token)} in that of the "
                "model that is served"
            )
    return None


def tokens_of(file: Path) -> dict[int, str]:
    """Token id → token, including tokens added to the vocabulary. Raises ModelError without any."""
    raw = read_json(file, max_bytes=MAX_BYTES)
    try:
        tokens = _listed(raw["model"]["vocab"])
        for added in raw.get("added_tokens") or ():
            tokens[added["id"]] = added["content"]
        if tokens:
            return dict(sorted(tokens.items()))
    except (AttributeError, IndexError, KeyError, TypeError):
        pass
    raise ModelError(
        f"{file} holds no vocabulary that can be read (model.vocab, added_tokens); save the tokenizer again"
    )


def _listed(vocabulary: Any) -> dict[int, str]:
    """Token id → token, from a dictionary of tokens to ids, or from pairs (token, score) in the order of ids."""
    if isinstance(vocabulary, list):
        return {token_id: pair[0] for token_id, pair in enumerate(vocabulary)}
    return {token_id: token for token, token_id in vocabulary.items()}


def _shown(token: str | None) -> str:
    return "no token" if token is None else repr(token)

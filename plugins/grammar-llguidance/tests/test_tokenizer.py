"""The library's copy of a tokenizer encodes the name of a special token as text, and keeps everything else."""

from __future__ import annotations

import json

import pytest
from llguidance import LLTokenizer

from tenonry_grammar_llguidance.tokenizer import faithful_tokenizer
from tenonry_grammars.base import GrammarError
from tenonry_testkit.fakes.tokenizer import END, PIECES, SPECIAL_NAMES, TOKENIZER_JSON

SPACE = "\u2581"
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def pieces_tokenizer(model: dict) -> str:
    """A tokenizer of pieces, as converted from SentencePiece, whose vocabulary has its special tokens, too."""
    prepended = {"type": "Prepend", "prepend": SPACE}
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    decoded = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    added = [
        {"id": place, "content": name, **FLAGS, "special": True}
        for place, name in enumerate(("<unk>", "</s>"))
    ]
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, prepended, replaced]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [decoded, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": model,
    })  # fmt: skip


PIECE_TEXTS = ["<unk>", "</s>", "<", "/", "s", ">", SPACE, "a", "</", "</s", "s>", "\ufb01"]
MODELS = {
    "BPE": {
        "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
        "vocab": {text: place for place, text in enumerate(PIECE_TEXTS)},
        "merges": [["<", "/"], ["</", "s"], ["</s", ">"], ["s", ">"]],
    },
    "Unigram": {
        "type": "Unigram", "unk_id": 0, "byte_fallback": True,
        "vocab": [[text, -1.0 * place] for place, text in enumerate(PIECE_TEXTS)],
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_special_tokens_of_the_vocabulary_are_text_like_any_other(kind):
    text, ids = faithful_tokenizer(pieces_tokenizer(MODELS[kind]))
    tokenizer = LLTokenizer(text, eos_token=1)
    assert ids == {"<unk>": 0, "</s>": 1}
    found = tokenizer.tokenize_str("a</s> \ufb01")
    assert not {0, 1} & set(found)
    assert tokenizer.decode_str(found) == "a</s> \ufb01"
    assert tokenizer.is_special_token(1)


def test_merges_as_text_are_read_as_pairs_are():
    model = {**MODELS["BPE"], "merges": ["< /", "</ s", "</s >"]}
    text, _ = faithful_tokenizer(pieces_tokenizer(model))
    assert LLTokenizer(text, eos_token=1).tokenize_str("</s>") == [
        PIECE_TEXTS.index("</s"),
        PIECE_TEXTS.index(">"),
    ]


def test_ids_and_bytes_of_all_tokens_stay():
    text, ids = faithful_tokenizer(TOKENIZER_JSON)
    tokenizer = LLTokenizer(text, eos_token=END)
    assert ids == {name: token_id for token_id, name in SPECIAL_NAMES.items()}
    for piece, token_id in PIECES.items():
        if piece == b"\xff":  # what the library marks special tokens with
            continue
        assert tokenizer.decode_bytes([token_id]) == piece
    assert all(tokenizer.is_special_token(token_id) for token_id in SPECIAL_NAMES)


def test_no_text_has_the_names_that_it_gives():
    names = [faithful_tokenizer(TOKENIZER_JSON)[0] for _ in range(2)]
    assert names[0] != names[1]
    assert not any(name in text for text in names for name in SPECIAL_NAMES.values())


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"added_tokens": [{}], "model": {}}', '{"model": 1}']
)
def test_what_is_no_tokenizer_is_refused(text):
    with pytest.raises(GrammarError, match="cannot read the tokenizer"):
        faithful_tokenizer(text)

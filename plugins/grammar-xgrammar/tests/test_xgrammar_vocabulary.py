"""Bytes of the vocabulary's tokens; needs no xgrammar."""

from __future__ import annotations

import json

import pytest

from tenonry_grammar_xgrammar.vocabulary import token_bytes
from tenonry_grammars.base import GrammarError
from tenonry_testkit.fakes.tokenizer import END, OTHER_END, PIECES, TOKENIZER_JSON

PIECES_OF_LLAMA = {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "<0xC3>": 3, "▁the": 4, "▁": 5, "é": 6}
LLAMA = {
    "model": {"type": "BPE", "vocab": PIECES_OF_LLAMA, "byte_fallback": True},
    "added_tokens": [
        {"id": 0, "content": "<unk>", "special": True},
        {"id": 1, "content": "<s>", "special": True},
        {"id": 7, "content": "[tool▁call]", "special": False},
        {"id": 8, "content": "<tool▁call>", "special": False},
        {"id": 9, "content": "<beyond>", "special": True},
    ],
    "decoder": {
        "type": "Sequence",
        "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}, {"type": "Fuse"}],
    },
}


def test_letters_of_bytes():
    found = token_bytes(TOKENIZER_JSON, 300)
    assert len(found) == 300
    assert all(found[token_id] == piece for piece, token_id in PIECES.items())
    assert {found[END], found[OTHER_END], found[299]} == {b""}


def test_pieces_with_bytes_and_spaces():
    found = token_bytes(json.dumps(LLAMA), 9)
    expected = [b"", b"", b"\n", b"\xc3", b" the", b" ", "é".encode(), "[tool▁call]".encode(), b""]
    assert found == expected


def test_a_list_of_pieces():
    unigram = {
        "model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["▁a", -1.5]]},
        "added_tokens": [{"id": 0, "content": "<unk>", "special": True}],
        "decoder": {"type": "Metaspace"},
    }
    assert token_bytes(json.dumps(unigram), 2) == [b"", b" a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read"),
        ("[]", "cannot read"),
        ('{"model": 1}', "cannot read"),
        ('{"model": {"vocab": {"a": "b"}}, "decoder": {"type": "ByteLevel"}}', "cannot read"),
        ('{"model": {"vocab": {}}, "decoder": {"type": "WordPiece"}}', "is WordPiece; start with"),
        ('{"model": {"vocab": {}}}', "is none; start with --grammar-backend llguidance"),
    ],
)
def test_what_cannot_be_read_is_refused(text, message):
    with pytest.raises(GrammarError, match=message):
        token_bytes(text, 8)

"""A small byte-level tokenizer in the format of `tokenizers`: every byte, some longer pieces, three tokens without
text.

Any process.
"""

from __future__ import annotations

import json

_LONGER = ("ab", "abc", '{"', '":', '",', '"}', "12", "((", "))", "name", "age", "ye", "es", "true")


def _byte_letters() -> list[str]:
    """Letter for each byte in byte-level vocabularies: printable ones represent themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


# The bytes of each piece, and its id.
PIECES: dict[bytes, int] = {bytes([byte]): byte for byte in range(256)}
PIECES |= {text.encode(): 256 + place for place, text in enumerate(_LONGER)}
END = len(PIECES)
OTHER_END = END + 1
MARKUP = OTHER_END + 1  # not flagged as special, as the tokens around tool calls of some models
# Their names, which a grammar may use as text.
SPECIAL_NAMES = {END: "<end>", OTHER_END: "<other>", MARKUP: "<tool>"}


def tokenizer_json(normalizer: str | None = None, *, add_prefix_space: bool = False) -> str:
    """The tokenizer, optionally with a normaliser or a prefix space."""
    letters = _byte_letters()
    vocabulary = {
        "".join(letters[byte] for byte in piece): token_id for piece, token_id in PIECES.items()
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": token_id, "content": name, **flags, "special": token_id != MARKUP}
        for token_id, name in SPECIAL_NAMES.items()
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": True,
    }
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": True,
        "vocab": vocabulary,
        "merges": [],
    }
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": normalizer and {"type": normalizer},
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": model,
        }
    )


TOKENIZER_JSON = tokenizer_json()

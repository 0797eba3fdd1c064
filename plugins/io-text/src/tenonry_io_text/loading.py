"""Loads a model's tokenizer from its folder. Front end, once, at start.

`tokenizer.json` goes straight to the Rust library: importing transformers takes seconds, and adds nothing but the
settings of tokenizer_config.json and of a few classes (`tokenizer_classes`), which are applied here. Folders without
that file (SentencePiece or tiktoken models, tokenizers written in Python) are opened by transformers' AutoTokenizer,
which never runs a folder's own code here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tenonry.errors import ModelError
from tenonry_hf_hub import read_json_if_there, remote_code_note
from tenonry_io_text.codec import Codec, FastCodec, SlowCodec
from tenonry_io_text.tokenizer_classes import apply_class

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA = ("extra_special_tokens", "additional_special_tokens")


def load_codec(folder: Path) -> Codec:
    """The tokenizer in `folder`. Raises ModelError: none there, unreadable, or only code that would have to be run."""
    if (folder / "tokenizer.json").exists():
        return FastCodec(load_fast(folder))
    tokenizer = load_with_transformers(folder)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return SlowCodec(tokenizer) if backend is None else FastCodec(backend)


def load_fast(folder: Path) -> Any:
    """The `tokenizers.Tokenizer` of tokenizer.json, with the tokens and flags of tokenizer_config.json."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  (the library raises plain Exception)
        raise ModelError(
            f"{path} cannot be read as a tokenizer: {error}; download or save the model again"
        ) from None
    tokenizer.no_truncation()  # both may be stored in the file; a prompt is neither cut nor filled up here
    tokenizer.no_padding()
    config = _settings_of_class(tokenizer, folder)
    tokenizer.encode_special_tokens = config.get("split_special_tokens") is True
    _add_tokens(tokenizer, config)
    return tokenizer


def _settings_of_class(tokenizer: Any, folder: Path) -> dict[str, Any]:
    model = read_json_if_there(folder / "config.json")
    settings = apply_class(tokenizer, folder, model, _all_settings(folder))
    return {key: value for key, value in settings.items() if value is not None}


def load_with_transformers(folder: Path) -> Any:
    """The tokenizer as transformers opens it. Raises ModelError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # anything can go wrong in there; the cause is named
        note = remote_code_note(tokenizer_settings(folder))
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        raise ModelError(
            f"no tokenizer could be opened in {folder}: {cause}; it needs a tokenizer.json, or "
            "give another folder with --tokenizer, or use --skip-tokenizer-init and prompts of token ids"
            + (f"; {note}" if note else "")
        ) from error


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, completed from special_tokens_map.json as older releases of transformers wrote it."""
    return {key: value for key, value in _all_settings(folder).items() if value is not None}


def _all_settings(folder: Path) -> dict[str, Any]:
    """Tokenizer settings, including null, which keeps a class from adding a special token of its own."""
    older = read_json_if_there(folder / "special_tokens_map.json")
    settings = read_json_if_there(folder / "tokenizer_config.json")
    return settings | {key: value for key, value in older.items() if settings.get(key) is None}


def token_text(value: Any) -> str | None:
    """The text of a token as tokenizer_config.json writes it: a string, or an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Name → text of the named special tokens (`bos_token`, …, and those that only this model has)."""
    return {name: text for name, value in _named(settings).items() if (text := token_text(value))}


def _named(settings: dict[str, Any]) -> dict[str, Any]:
    names = [*NAMED, *(key for key in settings if key.endswith("_token") and key not in NAMED)]
    found = {name: settings.get(name) for name in names}
    for key in EXTRA:
        if isinstance(settings.get(key), dict):
            found |= settings[key]
    return found


def _add_tokens(tokenizer: Any, settings: dict[str, Any]) -> None:
    """Add tokens of tokenizer_config.json that tokenizer.json lacks, in the order of their ids, as in transformers."""
    listed = {
        entry["content"]: _added_token(entry, special=bool(entry.get("special")))
        for entry in _listed(settings)
    }
    present = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    unchanged = {repr(token) for token in present.values()}
    tokenizer.add_tokens([token for token in listed.values() if repr(token) not in unchanged])
    known = listed or present  # their flags count, not those next to a name
    special = list(_named(settings).values())
    special += [
        value for key in EXTRA if isinstance(settings.get(key), list) for value in settings[key]
    ]
    tokenizer.add_special_tokens(
        [
            known.get(text) or _added_token(value, special=True)
            for value in special
            if (text := token_text(value))
        ]
    )


def _added_token(value: Any, *, special: bool) -> Any:
    from tokenizers import AddedToken

    if isinstance(value, str):
        return AddedToken(value, normalized=False, special=special)
    flags = {
        key: bool(value[key])
        for key in ("single_word", "lstrip", "rstrip", "normalized")
        if key in value
    }
    return AddedToken(value["content"], **flags, special=special)


def _listed(settings: dict[str, Any]) -> list[dict[str, Any]]:
    decoder = settings.get("added_tokens_decoder") or {}
    try:
        entries = [entry for _, entry in sorted(decoder.items(), key=lambda item: int(item[0]))]
    except (AttributeError, ValueError):
        raise ModelError(
            "added_tokens_decoder in tokenizer_config.json must be an object of id → token"
        ) from None
    return [entry for entry in entries if isinstance(entry, dict) and token_text(entry)]

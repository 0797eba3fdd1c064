from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

TEXTS = [
    "Once upon a time, there was a fox.",
    " leading and trailing spaces  \n\n\ttabs ",
    "😊 👨‍👩‍👧 🇯🇵 ❤️",
    "こんにちは, привет, γεια σου, مرحبا, 안녕하세요",
    "Zoë naïve café — “quotes” … ½ ∑ x² \x00\x7f",
    "def f(x):\n    return x ** 2  # ok",
    "don't , . ! it 's",
]


def render(folder: Path, messages: list[dict[str, str]], **more: Any) -> str:
    """Render the chat template the way transformers does: sandboxed, blocks trimmed, with raise_exception."""

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    template = environment.from_string((folder / "chat_template.jinja").read_text(encoding="utf-8"))
    return template.render(messages=messages, **more)


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives_the_way_there_and_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_nothing_is_added_to_a_prompt(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("").ids == []
    assert (
        tokenizer.encode("Once upon").ids
        == tokenizer.encode("Once upon", add_special_tokens=False).ids
    )


def test_special_tokens(tokenizer: Tokenizer, folder: Path) -> None:
    assert [
        tokenizer.token_to_id(word) for word in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    ] == [0, 1, 2]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert tokenizer.get_vocab_size() == config["vocab_size"] == 2048
    assert (
        tokenizer.decode(tokenizer.encode("<|im_start|>a<|im_end|>").ids, skip_special_tokens=True)
        == "a"
    )


def test_emoji_are_several_tokens(tokenizer: Tokenizer) -> None:
    """So that a stream of tokens really meets halves of characters."""
    assert len(tokenizer.encode("😊").ids) >= 3


def test_chat_template_writes_turns_as_in_training(folder: Path) -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "  Bye "},
    ]
    turns = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\n  Bye <|im_end|>\n"
    )
    assert render(folder, chat) == turns
    assert render(folder, chat, add_generation_prompt=True) == turns + "<|im_start|>assistant\n"


def test_chat_template_refuses_an_unknown_role(folder: Path) -> None:
    with pytest.raises(jinja2.TemplateError, match="not 'tool'"):
        render(folder, [{"role": "tool", "content": "x"}])


def test_turns_end_the_generation(folder: Path) -> None:
    config = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    assert config["eos_token_id"] == [2, 0]
    assert 0 < config["temperature"] <= 1

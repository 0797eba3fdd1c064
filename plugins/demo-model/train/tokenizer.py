"""Trains the byte-level BPE tokenizer of the demo model and writes its files. Runs in the training script only."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

from corpus import documents
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END_OF_TEXT, TURN_START, TURN_END = SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] not in ['system', 'user', 'assistant'] -%}
{{- raise_exception("The roles are 'system', 'user' and 'assistant', not '" + message['role'] + "'.") -}}
{%- endif -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
_SPECIAL = re.compile("|".join(re.escape(special) for special in SPECIALS))
_RARE = re.compile(r"\S*[^\u0000-\u024f]\S*")


def _texts(count: int) -> Iterator[str]:
    """Documents without words outside Latin script: emoji and other scripts stay several tokens per character."""
    for text in itertools.islice(documents(), count):
        yield _RARE.sub("", _SPECIAL.sub("\n", text))


def build(vocab: int, num_documents: int = 8000) -> Tokenizer:
    """Train a byte-level BPE with the three special tokens at ids 0, 1, 2; no token is added to a prompt."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=list(SPECIALS), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(_texts(num_documents), trainer)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    config = {
        "add_bos_token": False,
        "add_eos_token": False,
        "add_prefix_space": False,
        "additional_special_tokens": [TURN_START],
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "model_max_length": max_length,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8"
    )

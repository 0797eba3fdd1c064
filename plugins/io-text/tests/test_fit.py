"""A tokenizer larger than its model: rejected at the start, rejected in a prompt, or harmless."""

from __future__ import annotations

import json
import re

import pytest
from tokenizers import AddedToken, Tokenizer, processors

from tenonry.errors import ModelError, RequestError
from tenonry.interfaces.io_processor import read_prompt
from tenonry.sampling_params import SamplingParams
from tenonry_io_text.loading import load_codec


def with_image(folder, target, *, post=False):
    """The tokenizer with one more token, behind all others; `post` puts it in front of every prompt."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken("<image>", normalized=False)])
    number = tokenizer.token_to_id("<image>")
    if post:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<image>:0 $A:0", special_tokens=[("<image>", number)]
        )
    target.mkdir()
    tokenizer.save(str(target / "tokenizer.json"))
    return target, number


@pytest.mark.parametrize("kind", ["byte_level", "llama", "unigram", "words"])
def test_a_tokenizer_of_a_larger_model_is_refused_at_the_start(
    tokenizer_folders, make_processor, kind
):
    folder = tokenizer_folders[kind]
    size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size(
        with_added_tokens=False
    )
    make_processor(folder, vocab_size=size)
    make_processor(folder, vocab_size=size + 64)
    said = rf"{re.escape(str(folder))} does not fit .* ids up to {size - 1} .* has {size - 1} rows; .*--tokenizer"
    with pytest.raises(ModelError, match=said):
        make_processor(folder, vocab_size=size - 1)


def test_an_added_token_without_a_row_is_refused_in_the_prompt_that_holds_it(
    tokenizer_folders, make_processor, tmp_path
):
    """As in Gemma 3 for text: its tokenizer has the place of an image, its embedding has no row for that."""
    folder, number = with_image(tokenizer_folders["llama"], tmp_path / "image")
    processor = make_processor(folder, vocab_size=number)
    assert len(processor.process_prompt(read_prompt("the cat"), SamplingParams()).token_ids) > 0
    said = rf"token '<image>', which is id {number}: .* {number} rows, ids 0 to {number - 1}; leave it out"
    with pytest.raises(RequestError, match=said) as caught:
        processor.process_prompt(read_prompt("the <image> cat"), SamplingParams())
    assert caught.value.param == "prompt"
    assert (
        make_processor(folder, vocab_size=number + 1)
        .process_prompt(read_prompt("the <image> cat"), SamplingParams())
        .token_ids.max()
        == number
    )


def test_a_token_that_every_prompt_gets_needs_a_row(tokenizer_folders, make_processor, tmp_path):
    folder, number = with_image(tokenizer_folders["llama"], tmp_path / "image", post=True)
    make_processor(folder, vocab_size=number + 1)
    with pytest.raises(
        ModelError, match=f"puts '<image>', id {number}, around every prompt.* {number} rows"
    ):
        make_processor(folder, vocab_size=number)


def test_added_tokens_inside_the_vocabulary_do_not_hide_plain_ones(tokenizer_folders):
    """SPECIALS are at the front of the vocabulary and among the added tokens."""
    codec = load_codec(tokenizer_folders["byte_level"])
    plain = codec.plain_tokens_from(0)
    assert "<s>" not in plain.values()
    assert set(plain) == set(range(4, 4 + len(plain)))
    assert codec.plain_tokens_from(max(plain)) == {max(plain): plain[max(plain)]}
    assert codec.plain_tokens_from(max(plain) + 1) == {}


def test_a_tokenizer_in_python(tmp_path):
    """One that transformers implements itself counts in the same way."""
    pytest.importorskip("transformers")
    (tmp_path / "vocab.json").write_text(
        json.dumps({"a": 0, "b": 1, "c": 2, "<pad>": 3, "<unk>": 4})
    )
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "Wav2Vec2CTCTokenizer", "pad_token": "<pad>", "unk_token": "<unk>"}
        )
    )
    codec = load_codec(tmp_path)
    assert codec.plain_tokens_from(1).keys() <= {1, 2, 3, 4}
    assert codec.plain_tokens_from(1)[2] == "c"
    assert codec.plain_tokens_from(5) == {}

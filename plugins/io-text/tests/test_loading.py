"""Loading tokenizer.json straight into the Rust library yields the same results as transformers."""

from __future__ import annotations

import json
import shutil

import pytest

from tenonry.errors import ModelError, RequestError
from tenonry_io_text.codec import FastCodec, SlowCodec, make_detokenizer
from tenonry_io_text.loading import (
    load_codec,
    load_fast,
    load_with_transformers,
    special_tokens,
    tokenizer_settings,
)

KINDS = ["byte_level", "llama", "gemma", "unigram", "metaspace", "wordpiece", "words", "suffix"]
TEXTS = [
    "Once upon a time", " leading and  double spaces ", "naïve café\n\ttab", "你好 😀 👩‍👩‍👧‍👦", "a<|user|>b </s>",
    "x" * 300, "", "\x00",    "don't  stop", "▁",
]  # fmt: skip


@pytest.fixture(scope="session")
def oracle():
    """transformers' own loader, imported once."""
    from transformers import AutoTokenizer

    return lambda folder: AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def assert_same(codec, other):
    for text in TEXTS:
        for special in (True, False):
            ids = codec.encode(text, add_special_tokens=special)
            assert ids == other.encode(text, add_special_tokens=special), (text, special)
            for skip in (True, False):
                theirs = other.decode(
                    ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
                )
                assert codec.decode(ids, skip_special_tokens=skip) == theirs


@pytest.mark.parametrize("kind", KINDS)
def test_encodes_as_transformers_does(tokenizer_folders, oracle, kind):
    assert_same(load_codec(tokenizer_folders[kind]), oracle(tokenizer_folders[kind]))


@pytest.fixture
def edited(tokenizer_folders, tmp_path):
    """A copy of the byte-level folder with other settings; `drop` takes added tokens out of tokenizer.json."""

    def edit(*, kind="byte_level", drop=(), state=None, **settings):
        folder = tmp_path / "edited"
        shutil.copytree(tokenizer_folders[kind], folder)
        config = json.loads((folder / "tokenizer_config.json").read_text()) | settings
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        saved = json.loads((folder / "tokenizer.json").read_text()) | (state or {})
        saved["added_tokens"] = [
            token for token in saved["added_tokens"] if token["content"] not in drop
        ]
        (folder / "tokenizer.json").write_text(json.dumps(saved))
        return folder

    return edit


def flags(content, **values):
    return {
        "content": content,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
        **values,
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"eos_token": "<|end|>"},
        {"extra_special_tokens": ["<|a|>", "<|b|>"]},
        {"additional_special_tokens": ["<|a|>"], "eos_token": flags("<|end|>", lstrip=True, __type="AddedToken")},
        {"image_token": "<image>"},
        {"pad_token": "<pad>", "unk_token": None, "cls_token": "the"},
        {"added_tokens_decoder": {"421": flags("<|y|>", special=True), "420": flags("<|x|>", special=False)}},
        {"drop": ["<|user|>"], "added_tokens_decoder": {"3": flags("<|user|>", special=True, rstrip=True)}},
        {"drop": ["<|user|>"], "added_tokens_decoder": {"3": flags("<|user|>", special=False)}},
        {"split_special_tokens": True},
        {"add_bos_token": False, "add_eos_token": True},
        {"state": {"truncation": {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}}},
        {
            "state": {
                "padding": {
                    "strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "<unk>",
                }
            }
        },
    ],
    ids=str,
)  # fmt: skip
def test_settings_of_tokenizer_config(edited, oracle, settings):
    folder = edited(**settings)
    codec = load_codec(folder)
    for text in ("a<|x|> <|y|><|a|> <|b|>the<image>b <|user|> c <|end|> d", "the cat"):
        ids = codec.encode(text, add_special_tokens=True)
        assert ids == oracle(folder).encode(text)
        stream = codec.stream([], skip_special_tokens=True)
        streamed = "".join(stream.feed(token_id) for token_id in ids) + stream.flush()
        assert streamed == oracle(folder).decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["llama", "unigram"])
def test_class_that_rebuilds_its_tokenizer(edited, oracle, kind):
    """transformers builds LlamaTokenizer and T5Tokenizer from the vocabulary; the file is equivalent."""
    folder = edited(
        kind=kind,
        tokenizer_class="LlamaTokenizer" if kind == "llama" else "PreTrainedTokenizerFast",
    )
    ours, theirs = load_codec(folder), oracle(folder)
    for text in ("Once upon a time", "the cat was happy and 你好"):
        assert ours.encode(text, add_special_tokens=True) == theirs.encode(text)


def test_special_tokens_map_of_older_releases(edited):
    folder = edited(eos_token=None)
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": {"content": "</s>"}, "sep_token": "<s>"})
    )
    assert special_tokens(tokenizer_settings(folder)) == {
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "<s>"
    }  # fmt: skip


def test_named_special_tokens_of_one_model_only():
    settings = {
        "extra_special_tokens": {"image_token": "<image>"},
        "boi_token": {"content": "<boi>"},
        "add_bos_token": True,
    }
    assert special_tokens(settings) == {"image_token": "<image>", "boi_token": "<boi>"}


@pytest.mark.parametrize("text", ["{", "{}", "[]"])
def test_broken_tokenizer_json(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        load_fast(tmp_path)


@pytest.mark.parametrize("decoder", [[1], {"x": {}}, "x"])
def test_broken_added_tokens(edited, decoder):
    with pytest.raises(ModelError, match="added_tokens_decoder"):
        load_fast(edited(added_tokens_decoder=decoder))


def test_no_tokenizer_at_all(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        ModelError, match=r"no tokenizer could be opened in .*--skip-tokenizer-init"
    ):
        load_with_transformers(tmp_path)


def test_code_of_the_model_is_not_run(tmp_path):
    """Class K: a folder with only remote code is rejected with the reason."""
    (tmp_path / "config.json").write_text('{"model_type": "odd"}')
    settings = {
        "tokenizer_class": "OddTokenizer",
        "auto_map": {"AutoTokenizer": ["odd.OddTokenizer", None]},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "odd.py").write_text(
        "import pathlib; pathlib.Path(__file__).with_name('ran').touch()"
    )
    with pytest.raises(ModelError, match="never run"):
        load_codec(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_tokenizer_written_in_python(tmp_path):
    """transformers' byte tokenizer has no tokenizer.json: every token is one byte."""
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "ByT5Tokenizer"})
    )
    codec = load_codec(tmp_path)
    assert isinstance(codec, SlowCodec)
    ids = codec.encode("a 🦆é", add_special_tokens=False)
    detokenizer = make_detokenizer(
        codec.stream([], skip_special_tokens=True), ["é"], include=True, min_tokens=0
    )
    pieces = [detokenizer.push([token_id]) for token_id in [*ids, 10**6]]
    assert "".join(pieces) == "a 🦆é"
    assert detokenizer.stop_reason == "é"
    assert codec.token_bytes(ids[0], skip_special_tokens=False) == b"a"
    with pytest.raises(RequestError, match="-1"):
        codec.decode([-1], skip_special_tokens=False)


def test_vocabulary_files_without_tokenizer_json(tokenizer_folders, tmp_path):
    """Old folders hold vocab.json and merges.txt; transformers puts the fast tokenizer together."""
    state = json.loads((tokenizer_folders["byte_level"] / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(
        json.dumps(state["vocab"] | {"<|endoftext|>": len(state["vocab"])})
    )
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in state["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer"})
    )
    codec = load_codec(tmp_path)
    assert isinstance(codec, FastCodec)
    expected = load_codec(tokenizer_folders["byte_level"]).encode(
        "the happy cat", add_special_tokens=False
    )
    assert codec.encode("the happy cat", add_special_tokens=False) == expected


@pytest.mark.parametrize("ids", [[-1], [1, 2**32]])
def test_decode_refuses_what_can_be_no_id(tokenizer_folders, ids):
    with pytest.raises(RequestError, match=str(ids[-1])):
        load_codec(tokenizer_folders["byte_level"]).decode(ids, skip_special_tokens=False)

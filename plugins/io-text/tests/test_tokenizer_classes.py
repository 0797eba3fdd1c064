"""Classes that transformers rebuilds yield the ids of AutoTokenizer, for any contents of a tokenizer's two files."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from tokenizers import Tokenizer, models

from tenonry_io_text.loading import load_codec
from tenonry_io_text.tokenizer_class_names import GENERIC, OVERRIDDEN_TYPES, REGISTERED
from tenonry_io_text.tokenizer_classes import CLASSES

TEXTS = [
    "Once upon a time", " leading and  double ", "naïve café\n\ttab 12345", "a<|user|>b </s> <|endoftext|>x", "",
    "don't  stop\r\n\r\n▁", "e\u0301 n\u0303o<s>b<s> c", "नमस्ते दुनिया 你好 😀", "<|user|> x",
]  # fmt: skip
FLAGS = {"lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
SPLITS = {
    "as it is": None,
    "with a prefix space": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "by digit": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    },
}  # fmt: skip
CHOICES = {
    "add_prefix_space": [True, False],
    "add_bos_token": [True, False, None],
    "add_eos_token": [True, False, None],
    "bos_token": ["<s>", "<|endoftext|>", None],
    "eos_token": ["</s>", None, {"content": "</s>", "__type": "AddedToken", **FLAGS}],
    "pad_token": ["<pad>", None],
}
BPE = [name for name in CLASSES if CLASSES[name].model == "BPE"]
MODEL_TYPES = [
    None, "llama", "gpt2", "gpt_neox", "qwen2", "qwen3_5", "gemma2", "granite", "mistral", "phi", "arctic"
]  # fmt: skip


@pytest.fixture(scope="session")
def oracle():
    from transformers import AutoTokenizer

    return lambda folder: AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


@pytest.fixture
def write(tokenizer_folders, tmp_path):
    """Writes a model folder; `split` and `post_processor` are those of tokenizer.json."""

    def folder(kind, settings, *, model_type=None, split=None, **state):
        source = json.loads((tokenizer_folders[kind] / "tokenizer.json").read_text())
        if split is not None:
            state["pre_tokenizer"] = split
        (tmp_path / "tokenizer.json").write_text(json.dumps(source | state))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        (tmp_path / "config.json").unlink(missing_ok=True)
        if model_type:
            (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        return tmp_path

    return folder


def assert_same(folder, oracle):
    ours, theirs = load_codec(folder), oracle(folder)
    for text, special in itertools.product(TEXTS, [True, False]):
        ids = theirs.encode(text, add_special_tokens=special)
        case = (text, special, (folder / "tokenizer_config.json").read_text())
        assert ours.encode(text, add_special_tokens=special) == ids, case
        decoded = theirs.decode(
            ids, skip_special_tokens=special, clean_up_tokenization_spaces=False
        )
        assert ours.decode(ids, skip_special_tokens=special) == decoded, case


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", [*BPE, "PreTrainedTokenizer"])
@pytest.mark.slow
def test_every_option_against_every_class(write, oracle, name, split):
    for options in itertools.product([True, False], repeat=3):
        flags = dict(
            zip(("add_prefix_space", "add_bos_token", "add_eos_token"), options, strict=True)
        )
        settings = {"tokenizer_class": f"{name}Fast", "bos_token": "<s>", "eos_token": "</s>"}
        assert_same(write("byte_level", settings | flags, split=SPLITS[split]), oracle)


@pytest.mark.parametrize("kind", ["byte_level", "llama", "gemma"])
@pytest.mark.slow
def test_mixed_declarations(write, oracle, kind):
    """Class, model type, options and special tokens drawn at random, also ones that contradict each other."""
    draw = random.Random(kind)
    for _ in range(40):
        settings = {
            key: draw.choice(values) for key, values in CHOICES.items() if draw.random() < 0.7
        }
        settings |= {"unk_token": "<unk>"} if draw.random() < 0.5 else {}
        if draw.random() < 0.8:
            settings["tokenizer_class"] = draw.choice([*BPE, "PreTrainedTokenizerFast"])
        state = {"post_processor": None} if draw.random() < 0.3 else {}
        folder = write(kind, settings, model_type=draw.choice(MODEL_TYPES), **state)
        assert_same(folder, oracle)


@pytest.fixture
def encoder(tmp_path):
    """Writes a model folder of an encoder: `pieces` are its vocabulary, with scores for Unigram."""

    def folder(model, settings, special, **state):
        tokenizer = Tokenizer(model)
        tokenizer.add_special_tokens([*special])
        source = json.loads(tokenizer.to_str())
        (tmp_path / "tokenizer.json").write_text(json.dumps(source | state))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        return tmp_path

    return folder


BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = sorted(
    {letter for text in TEXTS for letter in text.lower() + text + "éñ" if letter.strip()}
)


@pytest.mark.parametrize("lowers", [True, False, None])
@pytest.mark.parametrize("accents", [True, False, None])
@pytest.mark.parametrize("chinese", [True, False])
def test_bert_follows_its_settings(encoder, oracle, lowers, accents, chinese):
    pieces = [*BERT, *LETTERS, *(f"##{letter}" for letter in LETTERS), "once", "Once", "upon"]
    vocabulary = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    settings = {
        "tokenizer_class": "BertTokenizer",
        "strip_accents": accents,
        "tokenize_chinese_chars": chinese,
    }
    if lowers is not None:
        settings["do_lower_case"] = lowers
    model = models.WordPiece(vocabulary, unk_token="[UNK]")
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    }
    folder = encoder(
        model, settings, BERT, normalizer=normalizer, pre_tokenizer={"type": "Whitespace"}
    )
    assert_same(folder, oracle)


@pytest.mark.parametrize("prefix_space", [True, False, None])
@pytest.mark.parametrize(
    ("name", "special"),
    [
        ("T5Tokenizer", ("<pad>", "</s>", "<unk>")),
        ("XLMRobertaTokenizer", ("<s>", "<pad>", "</s>", "<unk>", "<mask>")),
    ],
)
@pytest.mark.parametrize(
    "normalizer", [None, {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}]
)
def test_pieces_of_words(encoder, oracle, name, special, prefix_space, normalizer):
    pieces = [*special, "▁", *LETTERS, "▁Once", "upon", "▁upon"]
    vocabulary = [(piece, -float(place)) for place, piece in enumerate(dict.fromkeys(pieces))]
    settings = {"tokenizer_class": name}
    if prefix_space is not None:
        settings["add_prefix_space"] = prefix_space
    model = models.Unigram(vocabulary, unk_id=special.index("<unk>"))
    split = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    folder = encoder(model, settings, special, normalizer=normalizer, pre_tokenizer=split)
    assert_same(folder, oracle)


@pytest.mark.parametrize("missing", [None, "[NOTHING]"])
def test_special_token_without_an_id_changes_nothing(encoder, missing):
    vocabulary = {piece: place for place, piece in enumerate([*BERT, "a"])}
    settings = {"tokenizer_class": "BertTokenizer", "sep_token": missing}
    folder = encoder(models.WordPiece(vocabulary, unk_token="[UNK]"), settings, BERT)
    assert load_codec(folder).encode("a", add_special_tokens=True) == [5]


def test_another_split_than_the_file_is_reported(write, caplog):
    load_codec(write("byte_level", {"tokenizer_class": "GPT2Tokenizer"}, split=SPLITS["by digit"]))
    assert "class GPT2Tokenizer does, not as tokenizer.json" in caplog.text
    caplog.clear()
    settings = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}
    load_codec(write("byte_level", settings))
    assert not caplog.text


def test_registered_classes_are_those_of_transformers():
    from transformers.models.auto import tokenization_auto as auto

    names = {
        model_type: name.removesuffix("Fast")
        for model_type, name in auto.TOKENIZER_MAPPING_NAMES.items()
        if name and name.removesuffix("Fast") in {*CLASSES, GENERIC}
    }
    assert names == REGISTERED
    overridden = auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS & set(names)
    assert {name for name in overridden if names[name] != GENERIC} == OVERRIDDEN_TYPES

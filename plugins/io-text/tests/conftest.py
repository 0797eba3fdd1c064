"""Small tokenizers of every common family, trained here, as folders that look like a model's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

sys.path.insert(0, str(Path(__file__).parent))

from tenonry.config import EngineConfig
from tenonry.info import ModelInfo
from tenonry.interfaces.io_processor import IOProcessorContext
from tenonry_io_text.options import TextOptions
from tenonry_io_text.processor import TextIOProcessor

CORPUS = [
    "Once upon a time a cat sat on a mat, and the cat was happy.",
    "The quick brown fox jumps over the lazy dog! Doesn't it?",
    "Ein Zug fährt über die Brücke; größer als gestern.",
    "naïve café — “quotes” and 12345 numbers 3.14",
    "你好，世界。今天天气很好。",
    "Привет, мир! Как дела?",
    "emoji: 😀 👩‍👩‍👧‍👦 🇩🇪 👍🏽",
    "def f(x):\n    return x + 1\n\n\tdone",
] * 4
SPECIALS = ["<unk>", "<s>", "</s>", "<|user|>"]
KINDS = ["byte_level", "llama", "gemma", "unigram", "metaspace", "wordpiece", "words", "suffix"]


def _bos(tokenizer):
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0", pair="<s>:0 $A:0 <s>:1 $B:1", special_tokens=[("<s>", bos)]
    )


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    _bos(tokenizer)
    return tokenizer


def _bytes_and_bpe(vocab_size):
    """Pieces and merges of a SentencePiece-like BPE, with the 256 byte tokens in front."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIALS, limit_alphabet=60, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    state = json.loads(tokenizer.to_str())["model"]
    trained = sorted(state["vocab"], key=state["vocab"].get)
    pieces = [
        *SPECIALS,
        *(f"<0x{value:02X}>" for value in range(256)),
        *(p for p in trained if p not in SPECIALS),
    ]
    merges = [
        tuple(merge) if isinstance(merge, list) else tuple(merge.split(" "))
        for merge in state["merges"]
    ]
    return {piece: index for index, piece in enumerate(pieces)}, merges


def _sentencepiece_bpe(*, prefix_space):
    vocab, merges = _bytes_and_bpe(260)
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    steps = [normalizers.Prepend("▁")] if prefix_space else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    chain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*chain, decoders.Strip(" ", 1, 0)] if prefix_space else chain
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    _bos(tokenizer)
    return tokenizer


def llama():
    return _sentencepiece_bpe(prefix_space=True)


def gemma():
    return _sentencepiece_bpe(prefix_space=False)


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=SPECIALS,
        unk_token="<unk>",
        show_progress=False,
        initial_alphabet=list("abcxyz"),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    _bos(tokenizer)
    return tokenizer


def metaspace():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=SPECIALS, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    _bos(tokenizer)
    return tokenizer


def words():
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordLevelTrainer(special_tokens=SPECIALS, show_progress=False)
    )
    return tokenizer


def suffix():
    """Words end with </w>: a token's text depends on whether it is the last one."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIALS, end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def save(tokenizer, folder, **config):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        **config,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def tokenizer_folders(tmp_path_factory):
    """Kind → folder."""
    root = tmp_path_factory.mktemp("tokenizers")
    return {kind: save(globals()[kind](), root / kind) for kind in KINDS}


@pytest.fixture
def make_processor():
    """Build a processor over a tokenizer's folder, as the kernel would."""

    def make(
        folder: Path, *, vocab_size=1000, max_model_len=512, options=None, submit=None, **config
    ):
        model = ModelInfo(
            name="m", path=str(folder), architecture="A", max_model_len=max_model_len, vocab_size=vocab_size,
            tokenizer_path=str(folder),
        )  # fmt: skip
        made = EngineConfig(model=str(folder), **config)
        return TextIOProcessor(
            IOProcessorContext(made, model, options=TextOptions(**(options or {})), submit=submit)
        )

    return make


@pytest.fixture
def chat(tokenizer_folders, make_processor):
    """A processor with one operator's template."""

    def make(template, **options):
        return make_processor(tokenizer_folders["llama"], chat_template=template, **options)

    return make

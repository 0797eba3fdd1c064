"""Incremental detokenisation equals decoding as a whole, for every family of tokenizers and any split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonry_io_text.codec import FastCodec, make_detokenizer
from tenonry_io_text.decoders import REPLACEMENT
from tenonry_io_text.detokenizers import StreamDetokenizer, TableDetokenizer
from tenonry_io_text.loading import load_codec
from tenonry_io_text.window import WindowStream

KINDS = ["byte_level", "llama", "gemma", "unigram", "metaspace", "wordpiece", "words", "suffix"]
TABLE_KINDS = KINDS[:-1]
PIECES = [
    "the cat", " cat", "  two  spaces", "\n\n", "\t", "Doesn't", " .", "you 're", "é", "größer", "你好", "世界。", "😀",
    "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "e\u0301", "\u200b", "\ufeff", "\x00", "ﬁ", "▁", " ▁ ", "<0x41>", "<|user|>", "</s>",
    "مرحبا", "नमस्ते", "�", "Ġ", "à",
]  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=6)), max_size=8).map("".join)


@st.composite
def token_chunks(draw, ids):
    """The ids in order, in random portions, mostly one by one."""
    chunks, at = [], 0
    while at < len(ids):
        size = draw(st.sampled_from([1, 1, 1, 2, 5]))
        chunks.append(ids[at : at + size])
        at += size
    return chunks


@pytest.fixture(scope="session")
def codecs(tokenizer_folders):
    return {kind: load_codec(folder) for kind, folder in tokenizer_folders.items()}


def plain(codec, prompt=(), *, skip=True):
    return make_detokenizer(
        codec.stream(prompt, skip_special_tokens=skip), (), include=False, min_tokens=0
    )


def run(detokenizer, chunks):
    return "".join(detokenizer.push(chunk) for chunk in chunks) + detokenizer.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_common_decoders_use_the_table(codecs, kind):
    """A family that silently fell back to the slow window would be a loss of speed that no other test sees."""
    assert isinstance(
        plain(codecs[kind]), TableDetokenizer if kind in TABLE_KINDS else StreamDetokenizer
    )


@pytest.mark.parametrize("kind", KINDS)
@given(text=texts, data=st.data(), skip=st.booleans(), special=st.booleans())
@pytest.mark.slow
def test_pieces_add_up_to_the_whole_text(codecs, kind, text, data, skip, special):
    codec = codecs[kind]
    ids = codec.encode(text, add_special_tokens=special)
    cut = data.draw(st.integers(0, len(ids)))
    prompt, output = ids[:cut], ids[cut:]
    whole, before = (codec.decode(part, skip_special_tokens=skip) for part in (ids, prompt))
    if REPLACEMENT in before or not whole.startswith(before):
        prompt, output, before = [], ids, ""
    found = run(plain(codec, prompt, skip=skip), data.draw(token_chunks(output)))
    assert found == whole[len(before) :]


@settings(deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_any_ids_of_a_byte_level_tokenizer(codecs, data, skip):
    """Broken UTF-8 included: the same replacement characters as decoding as a whole."""
    codec = codecs["byte_level"]
    size = codec.tokenizer.get_vocab_size()
    ids = data.draw(
        st.lists(st.one_of(st.integers(0, size + 50), st.integers(190, 260)), max_size=30)
    )
    assert run(plain(codec, skip=skip), data.draw(token_chunks(ids))) == codec.decode(
        ids, skip_special_tokens=skip
    )


@pytest.mark.parametrize("kind", ["llama", "gemma", "unigram", "wordpiece", "suffix"])
@given(data=st.data(), skip=st.booleans())
def test_any_ids_of_other_tokenizers(codecs, kind, data, skip):
    """Nothing raises; and if decoding as a whole yields whole characters only, the text is the same."""
    codec = codecs[kind]
    ids = data.draw(st.lists(st.integers(0, codec.tokenizer.get_vocab_size() + 50), max_size=20))
    whole = codec.decode(ids, skip_special_tokens=skip)
    found = run(plain(codec, skip=skip), data.draw(token_chunks(ids)))
    assert found == whole or REPLACEMENT in whole


@pytest.mark.parametrize("kind", ["byte_level", "llama", "gemma"])
@given(text=texts.filter(lambda text: REPLACEMENT not in text))
def test_never_half_a_character(codecs, kind, text):
    codec = codecs[kind]
    detokenizer = plain(codec)
    for token_id in codec.encode(text, add_special_tokens=False):
        assert REPLACEMENT not in detokenizer.push([token_id])
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("kind", ["byte_level", "llama"])
def test_a_cut_character_ends_as_a_replacement(codecs, kind):
    codec = codecs[kind]
    ids = codec.encode("ok 🦆", add_special_tokens=False)[:-1]
    detokenizer = plain(codec)
    assert "".join(detokenizer.push([token_id]) for token_id in ids) == "ok "
    assert set(detokenizer.finish()) == {REPLACEMENT}
    assert detokenizer.finish() == ""


@pytest.mark.parametrize("kind", ["byte_level", "llama"])
def test_output_completes_a_character_that_the_prompt_began(codecs, kind):
    """A request that takes over another one's delivered tokens."""
    codec = codecs[kind]
    ids = codec.encode("ok 🦆!", add_special_tokens=False)
    duck = codec.decode(ids[:-1], skip_special_tokens=True)
    assert duck.endswith("🦆")
    assert run(plain(codec, ids[:-3]), [[token_id] for token_id in ids[-3:]]) == "🦆!"


@pytest.mark.parametrize("kind", ["byte_level", "llama"])
def test_a_character_that_the_prompt_left_open_is_not_the_outputs_fault(codecs, kind):
    codec = codecs[kind]
    prompt = codec.encode("🦆", add_special_tokens=False)[:-1]
    word = codec.encode(" the", add_special_tokens=False)[-1:]
    assert REPLACEMENT not in run(plain(codec, prompt), [word])
    assert run(plain(codec, prompt), []) == ""

    duck = codec.encode("🦆", add_special_tokens=False)[-4:]
    assert run(plain(codec, prompt), [[token_id] for token_id in duck]) == "🦆"


def test_each_byte_of_a_broken_character_shows_in_sentencepiece(codecs):
    codec = codecs["llama"]
    ids = [codec.tokenizer.token_to_id(token) for token in ("<0xE4>", "<0xBD>", "▁", "<0xFF>")]
    expected = codec.decode(ids, skip_special_tokens=True)
    assert expected.count(REPLACEMENT) == 3
    assert run(plain(codec), [[token_id] for token_id in ids]) == expected


def test_leading_space_of_sentencepiece(codecs):
    codec = codecs["llama"]
    ids = codec.encode("cat cat", add_special_tokens=True)
    bos, first = ids[0], ids[1:]
    assert run(plain(codec, [bos]), [first]) == "cat cat"
    assert run(plain(codec, codec.encode("The", add_special_tokens=True)), [first]) == " cat cat"
    assert run(plain(codec, [bos], skip=False), [first]) == " cat cat"


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_skipped_or_shown(codecs, kind):
    codec = codecs[kind]
    user = codec.tokenizer.token_to_id("<|user|>")
    cat = codec.encode("cat", add_special_tokens=False)
    assert "<|user|>" in run(plain(codec, cat, skip=False), [[user]])
    assert run(plain(codec, cat), [[user]]) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_ids_without_a_token_are_nothing(codecs, kind):
    """Embeddings are often padded beyond the tokenizer's vocabulary, and a random model samples from all of it."""
    codec = codecs[kind]
    cat = codec.encode("cat", add_special_tokens=False)
    beyond = codec.tokenizer.get_vocab_size() + 7
    expected = codec.decode(cat, skip_special_tokens=True)
    assert run(plain(codec), [[beyond], cat, [beyond, beyond]]) == expected


@pytest.mark.parametrize("ids", [[-1], [2**32], [2**63]])
def test_absurd_ids_do_not_raise(codecs, ids):
    assert run(plain(codecs["byte_level"]), [ids]) == ""


def test_numpy_ids_and_empty_pushes(codecs):
    codec = codecs["byte_level"]
    ids = np.array(codec.encode("the cat", add_special_tokens=False), np.int32)
    detokenizer = plain(codec, np.empty(0, np.int32))
    assert detokenizer.push([]) == ""
    assert detokenizer.consumed == 0
    assert detokenizer.push(ids) == "the cat"
    assert detokenizer.consumed == len(ids)
    assert all(type(key) is int for key in codec.tables[True].texts)
    assert run(plain(codec, ids), [ids[:1], ids[1:]]) == "the cat"


@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_table_stays_within_the_vocabulary(codecs, kind):
    codec = FastCodec(codecs[kind].tokenizer)
    size = codec.tokenizer.get_vocab_size()
    run(plain(codec), [list(range(size + 100))])
    table = codec.tables[True]
    assert len(table.texts) + len(table.partial) == size


@pytest.mark.parametrize("kind", KINDS)
@given(text=texts, data=st.data())
def test_window_agrees_with_the_table(codecs, kind, text, data):
    """The slow stream, over the same tokenizers: the fallback for unknown decoders."""
    codec = codecs[kind]
    ids = codec.encode(text, add_special_tokens=False)
    whole = codec.decode(ids, skip_special_tokens=True)
    stream = WindowStream(lambda part: codec.decode(part, skip_special_tokens=True), [])
    found = run(StreamDetokenizer(stream), data.draw(token_chunks(ids)))
    assert found == whole or REPLACEMENT in whole


def test_window_does_not_grow_over_broken_text(codecs):
    codec = codecs["byte_level"]
    lone = codec.tokenizer.token_to_id("Ġ") and codec.encode("é", add_special_tokens=False)[0]
    stream = WindowStream(lambda part: codec.decode(part, skip_special_tokens=True), [])
    for _ in range(200):
        stream.feed(lone)
        assert len(stream.ids) < 20


def test_window_does_not_grow_over_skipped_tokens(codecs):
    codec = codecs["suffix"]
    user = codec.tokenizer.token_to_id("<|user|>")
    stream = WindowStream(lambda part: codec.decode(part, skip_special_tokens=True), [])
    words = codec.encode("the cat", add_special_tokens=False)
    text = "".join(stream.feed(token_id) for token_id in [words[0], *[user] * 100, *words[1:]])
    assert text == "the cat"
    assert len(stream.ids) < 10


@pytest.mark.parametrize("kind", KINDS)
def test_window_keeps_its_hold_after_skipped_tokens(codecs, kind):
    codec = codecs[kind]
    ids = codec.encode("<|user|>" * 8 + "🦆", add_special_tokens=False)
    stream = WindowStream(lambda part: codec.decode(part, skip_special_tokens=True), [])
    assert run(StreamDetokenizer(stream), [[token_id] for token_id in ids]) == codec.decode(
        ids, skip_special_tokens=True
    )


def test_window_is_seeded_with_the_prompt(codecs):
    codec = codecs["suffix"]
    ids = codec.encode("the cat sat", add_special_tokens=False)
    assert run(plain(codec, ids[:1]), [[token_id] for token_id in ids[1:]]) == " cat sat"


def test_window_is_seeded_with_words_that_skipped_tokens_follow(codecs):
    codec = codecs["suffix"]
    words, user = (
        codec.encode("the cat", add_special_tokens=False),
        codec.tokenizer.token_to_id("<|user|>"),
    )
    for silent in (0, 7, 8, 9, 40):
        prompt = [words[0], *[user] * silent]
        assert run(plain(codec, prompt), [[token_id] for token_id in words[1:]]) == " cat"
    assert run(plain(codec, [user] * 40), [[token_id] for token_id in words]) == "the cat"


@pytest.mark.parametrize("kind", ["byte_level", "llama", "gemma", "unigram", "wordpiece"])
def test_bytes_of_the_tokens_after_a_prompt_decode_to_their_text(codecs, kind):
    codec = codecs[kind]
    ids = codec.encode("the cat was 🦆 é happy<|user|>", add_special_tokens=False)
    for skip in (False, True):
        stream = codec.stream(ids[:1], skip_special_tokens=skip)
        pieces = [codec.token_bytes(i, skip_special_tokens=skip) for i in ids[1:]]
        text = "".join(stream.feed(token_id) for token_id in ids[1:]) + stream.flush()
        assert b"".join(pieces).decode() == text
        assert pieces[-1].strip() == (b"" if skip else b"<|user|>")
    assert codec.token_bytes(10**6, skip_special_tokens=False) == b""


@pytest.mark.parametrize("kind", ["byte_level", "llama"])
def test_a_part_of_a_character_has_its_own_bytes(codecs, kind):
    codec = codecs[kind]
    ids = codec.encode("🦆", add_special_tokens=False)
    pieces = [codec.token_bytes(token_id, skip_special_tokens=False) for token_id in ids]
    assert len(pieces[-1]) < 4
    assert "".join(map(bytes.hex, pieces)).endswith("🦆".encode().hex())

"""Long texts of a server's clients are tokenised in processes: the same tokens, within bounds."""

from __future__ import annotations

import shutil

import pytest

from tenonry.errors import ModelError, RequestError
from tenonry.interfaces.io_processor import read_prompt
from tenonry.sampling_params import SamplingParams
from tenonry_helper_pool.client import as_client
from tenonry_io_text.long_texts import HELPER, LONG_CHARS

pytestmark = pytest.mark.integration

TEXT = "Once upon a time a cat sat on a mat, größer als gestern 12345. "
LONG = TEXT * (LONG_CHARS // len(TEXT) + 1)


class Numbers:
    """The latest numbers of each helper."""

    def __init__(self) -> None:
        self.latest = {}

    def submit(self, method, record):
        assert method == "record_extra"
        self.latest[record.helper] = record


@pytest.fixture
def numbers():
    return Numbers()


@pytest.fixture
def make(tokenizer_folders, make_processor, numbers):
    made = []

    def processor(kind="byte_level", **options):
        folder = tokenizer_folders[kind]
        given = {"max_prompt_chars": 1 << 26, **options}
        made.append(make_processor(folder, options=given, submit=numbers.submit))
        return made[-1]

    yield processor
    for each in made:
        each.shutdown()


def test_tokens_are_those_of_the_tokenizer(make, numbers):
    processor = make()
    expected = processor.encode(LONG)
    assert numbers.latest[HELPER].num_jobs == 0  # no server, no clients
    with as_client("a"):
        assert processor.encode(LONG) == expected
        assert processor.encode(LONG, add_special_tokens=False) == expected[1:]
        prompt = processor.process_prompt(read_prompt(LONG), SamplingParams())
    assert prompt.token_ids.tolist() == expected
    assert numbers.latest[HELPER].num_jobs == 3


def test_other_texts_are_tokenised_where_they_are(make, numbers):
    processor = make()
    with as_client("a"):
        processor.encode(LONG[:LONG_CHARS])
    assert numbers.latest[HELPER].num_jobs == 0


def test_a_text_that_takes_too_long_is_refused(make, numbers):
    processor = make(text_seconds=0.3)
    with as_client("a"), pytest.raises(RequestError, match=r"within 0\.3 s of processor time"):
        processor.encode(LONG * 64)
    assert numbers.latest[HELPER].num_timeouts == 1


def test_a_text_that_is_no_unicode_is_refused_by_place(make):
    with as_client("a"), pytest.raises(RequestError, match=f"character {len(LONG)} of the text"):
        make().encode(LONG + "\ud800")


def test_a_tokenizer_that_cannot_be_opened_again_is_reported(
    make_processor, tokenizer_folders, tmp_path
):
    folder = shutil.copytree(tokenizer_folders["words"], tmp_path / "words")
    processor = make_processor(folder, options={"max_prompt_chars": 1 << 20})
    (folder / "tokenizer.json").write_text("{}")
    try:
        with as_client("a"), pytest.raises(ModelError, match="cannot be tokenised"):
            processor.encode(LONG)
    finally:
        processor.shutdown()

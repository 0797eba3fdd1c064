"""Small files of a model folder: read with a cap, and errors that name the file."""

from __future__ import annotations

import math
import os

import pytest

from tenonry.errors import ModelError
from tenonry_hf_hub import check_sizes, read_json, read_text
from tenonry_hf_hub.files import read_json_if_there


def test_read_json_gives_the_object(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 3}')
    assert read_json(tmp_path / "config.json") == {"vocab_size": 3}


def test_numbers_that_are_not_finite_are_read_as_transformers_reads_them(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"time_step_limit": [0.0, Infinity], "low": -Infinity, "odd": NaN}')
    found = read_json(path)
    assert found["time_step_limit"] == [0.0, math.inf]
    assert found["low"] == -math.inf
    assert math.isnan(found["odd"])


@pytest.mark.parametrize("value", ["Infinity", "NaN", "-Infinity"])
def test_a_size_that_is_not_finite_is_refused(tmp_path, value):
    path = tmp_path / "config.json"
    path.write_text(f'{{"hidden_size": {value}}}')
    with pytest.raises(ModelError, match=r"hidden_size is (-?inf|nan), which is not from 1"):
        check_sizes(read_json(path), path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[1]", "must hold a JSON object, not a list"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a": "' + "x" * 100 + '"}', "larger than 50 bytes"),
        ("\ud800", "not valid JSON"),
    ],
)
def test_read_json_refuses_what_is_no_small_object(tmp_path, text, words):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ModelError, match=words) as caught:
        read_json(path, max_bytes=50 if "larger" in words else 1 << 20)
    assert str(path) in str(caught.value)


def test_read_json_names_a_missing_file(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        read_json(tmp_path / "config.json")
    assert read_json_if_there(tmp_path / "config.json") == {}


def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelError, match="not a plain file"):
        read_json(tmp_path / "config.json")


def test_read_text_says_which_byte_is_no_utf8(tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(ModelError, match="byte 2 is 0xff"):
        read_text(tmp_path / "chat_template.jinja")

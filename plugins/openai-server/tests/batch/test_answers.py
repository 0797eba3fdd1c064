"""The file of answers: a killed run is continued, and nothing is repeated."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.errors import ConfigError, TenonryError
from tenonry_openai_server.batch.answers import AnswerFile, as_json
from tenonry_openai_server.batch.requests import Request

REQUESTS = [Request(name, "/v1/completions", b"{}", f"batch_req_{name}") for name in "abc"]
WANTED = {request.custom_id: request.id for request in REQUESTS}


def write_all(path) -> None:
    with AnswerFile(path, WANTED) as answers:
        for request in REQUESTS:
            if request.custom_id not in answers.done:
                answers.add(request, 200, "r", b'{"text": "\xc3\xa9"}')


def lines_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_line_has_the_fields_of_the_format(tmp_path):
    path = tmp_path / "out.jsonl"
    with AnswerFile(path, WANTED) as answers:
        answers.add(REQUESTS[0], 400, "req-1", b'{"error": {}}')
        assert (answers.done, answers.refused) == ({"a"}, 1)
    assert lines_of(path) == [
        {
            "id": "batch_req_a",
            "custom_id": "a",
            "response": {"status_code": 400, "request_id": "req-1", "body": {"error": {}}},
            "error": None,
        }
    ]


@given(cut=st.integers(0, 400))
def test_wherever_a_run_was_killed_it_is_continued(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "out.jsonl"
    write_all(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    write_all(path)
    assert sorted(line["custom_id"] for line in lines_of(path)) == ["a", "b", "c"]
    kept = whole[:cut].rfind(b"\n") + 1
    assert path.read_bytes()[:kept] == whole[:kept]


def test_errors_of_an_earlier_run_are_counted(tmp_path):
    path = tmp_path / "out.jsonl"
    with AnswerFile(path, WANTED) as answers:
        answers.add(REQUESTS[0], 404, "", b"{}")
        answers.add(REQUESTS[1], 200, "", b"{}")
    with AnswerFile(path, WANTED) as answers:
        assert (answers.done, answers.refused) == ({"a", "b"}, 1)


@pytest.mark.parametrize(
    ("wanted", "text", "words"),
    [
        ({"b": "batch_req_b"}, None, "line 1 answers custom_id 'a', which the input lacks"),
        ({**WANTED, "a": "batch_req_x"}, None, "line 1 answers another request with custom_id 'a'"),
        (WANTED, b"hello\n", "line 1 is no answer of a batch"),
    ],
)
def test_a_file_of_other_answers_is_left_alone(tmp_path, wanted, text, words):
    path = tmp_path / "out.jsonl"
    write_all(path)
    if text:
        path.write_bytes(text)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=f"{words}; choose another output file"):
        AnswerFile(path, wanted)
    assert path.read_bytes() == before


def test_two_batches_do_not_share_a_file(tmp_path):
    path = tmp_path / "out.jsonl"
    with AnswerFile(path, WANTED), pytest.raises(ConfigError, match="written by another batch"):
        AnswerFile(path, WANTED)
    write_all(path)


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        AnswerFile(tmp_path / "none" / "out.jsonl", WANTED)


FULL = """
import resource, sys, signal
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_answers as t
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
try:
    t.write_all(Path(sys.argv[1]))
except t.TenonryError as error:
    print(error)
"""


@pytest.mark.integration
def test_a_full_disk_ends_the_run_and_the_next_goes_on(tmp_path):
    assert hasattr(resource, "RLIMIT_FSIZE")
    path = tmp_path / "out.jsonl"
    here = __file__.rpartition("/")[0]
    command = [sys.executable, "-c", FULL, str(path), here]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "cannot be written" in said
    assert path.stat().st_size == 200
    write_all(path)
    assert sorted(line["custom_id"] for line in lines_of(path)) == ["a", "b", "c"]


def test_what_is_no_json_becomes_a_text():
    assert as_json(b'{"a": 1}') == b'{"a": 1}'
    assert json.loads(as_json(b"<html>\xff")) == "<html>\ufffd"
    assert TenonryError

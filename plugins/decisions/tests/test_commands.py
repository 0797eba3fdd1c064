"""The verbs, on a file and on what is none."""

from __future__ import annotations

import json
import threading
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from xml.etree import ElementTree as ET

import msgspec
import pytest
from decision_runs import Asked, run

from tenonry.cli import main
from tenonry_decisions.frames import pack

EVIL = "<script>alert('&')</script>"


@pytest.fixture
def log(tmp_path):
    asked = [Asked(0, "a", 6, 8), Asked(0, EVIL, 6, 8), Asked(1, "c", 6, 4)]
    found = run(asked, max_num_seqs=2)
    path = tmp_path / "decisions"
    path.write_bytes(b"".join(map(pack, [found.header, *found.chunks])))
    return path


def test_explain_says_what_became_of_a_request(log, capsys):
    assert main(["explain", "c", "--log", str(log)]) == 0
    text = capsys.readouterr().out
    assert "steps 1–7          waited: all 2 rows were in use" in text
    assert "step 12            ended (length) with 4 tokens" in text


def test_explain_writes_json_and_lists_requests(log, capsys):
    assert main(["explain", "--log", str(log)]) == 0
    assert capsys.readouterr().out.splitlines() == ["a", EVIL, "c"]
    assert main(["explain", "--json", "--log", str(log)]) == 0
    assert json.loads(capsys.readouterr().out) == {"requests": ["a", EVIL, "c"]}
    assert main(["explain", "c", "--json", "--log", str(log)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["request"] == "c"
    assert found["spans"][1] == {"start": 1, "stop": 8, "text": "waited: all 2 rows were in use"}


def test_a_request_may_follow_the_log(log, capsys):
    assert main(["explain", "--log", str(log), "c"]) == 0
    assert capsys.readouterr().out.startswith("request c: ")


@pytest.fixture
def logs(log, tmp_path, monkeypatch):
    """Logs of engines 0 and 1; that of engine 1 has two runs, the first in the file being the latest."""
    monkeypatch.chdir(tmp_path)
    found = run([Asked(0, "other", 6, 8)])
    path = tmp_path / "decisions.1"
    data = []
    for number, started_at in ((1, 200.0), (2, 100.0)):
        change = {"run": number, "engine": 1, "started_at": started_at}
        data.append(msgspec.structs.replace(found.header, **change))
        data += [msgspec.structs.replace(chunk, run=number) for chunk in found.chunks]
        found = run([Asked(0, "first", 6, 8)])
    path.write_bytes(b"".join(map(pack, data)))
    return ["--log", str(log), "--log", str(path)]


@pytest.mark.parametrize("words", [["timeline", "x.json"], ["regret"]])
def test_the_engine_must_be_chosen_where_there_are_several(words, logs, capsys):
    assert main([*words, *logs]) == 1
    assert "records of engines 0, 1; choose one with --engine N" in capsys.readouterr().err
    assert main([*words, *logs, "--engine", "2"]) == 1
    assert "--engine 2 has no records; engines with records: 0, 1" in capsys.readouterr().err


def test_the_latest_run_of_the_engine_is_drawn_and_others_are_counted(logs, tmp_path, capsys):
    file = tmp_path / "trace.json"
    assert main(["timeline", str(file), *logs, "--engine", "1"]) == 0
    assert "using the latest of 2 runs of engine 1" in capsys.readouterr().err
    assert b'"other"' in file.read_bytes()
    assert b'"first"' not in file.read_bytes()


@pytest.mark.parametrize(
    ("variable", "words", "key"), [("one,two", [], "one"), ("one", ["--api-key", "flag"], "flag")]
)
def test_the_first_key_of_the_variable_is_sent(log, monkeypatch, capsys, variable, words, key):
    monkeypatch.setenv("TENONRY_API_KEY", variable)
    sent = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            sent.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(log.read_bytes())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert main(["explain", "c", "--url", url, *words]) == 0
        thread.join()
    assert sent == [f"Bearer {key}"]


def test_a_missing_key_is_named_with_the_flag(capsys):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(401)
            self.end_headers()
            self.wfile.write(b'{"error": {"message": "an API key is needed"}}')

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert main(["explain", "--url", f"http://127.0.0.1:{server.server_port}"]) == 1
        thread.join()
    assert capsys.readouterr().err.endswith("returned 401: an API key is needed; give --api-key\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["explain", "x", "--log", "nowhere"], "nowhere cannot be read: No such file"),
        (["explain", "x", "--log", __file__], "invalid decision record at byte 0|no records"),
        (
            ["timeline", "x.pdf", "--log", "nowhere"],
            "unsupported suffix '.pdf'; name a file with .html",
        ),
        (["explain", "x", "--url", "http://127.0.0.1:9"], "is unreachable"),
    ],
)
def test_errors_name_the_source(words, error, capsys):
    assert main(words) == 1
    text = capsys.readouterr().err
    assert any(part in text for part in error.split("|")), text


def test_an_unknown_request_is_named(log, capsys):
    assert main(["explain", "nobody", "--log", str(log)]) == 1
    assert "request 'nobody' is not in the records; the latest: a" in capsys.readouterr().err


def test_the_page_is_whole_and_escaped(log, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["timeline", str(page), "--log", str(log)]) == 0
    text = page.read_text("utf-8")
    tags = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append((tag, dict(attrs)))
    parser.feed(text)
    assert "script" not in {tag for tag, _ in tags}
    assert not [attrs for _, attrs in tags if {"src", "href"} & set(attrs)]
    assert "&lt;script&gt;" in text
    assert "3 requests, steps 0–" in capsys.readouterr().out


def test_the_drawing_is_xml(log, tmp_path):
    drawing = tmp_path / "drawing.svg"
    assert main(["timeline", str(drawing), "--requests", "2", "--log", str(log)]) == 0
    titles = [each.text for each in ET.parse(drawing).iter("{http://www.w3.org/2000/svg}title")]
    assert "c, steps 1–7: waited: all 2 rows were in use" in titles
    assert not [each for each in titles if each.startswith("a,")]


def test_the_trace_has_a_thread_for_each_request(log, tmp_path):
    file = tmp_path / "trace.json"
    assert main(["timeline", str(file), "--log", str(log)]) == 0
    events = json.loads(file.read_bytes())["traceEvents"]
    threads = {
        each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"
    }
    assert threads == {1: "a", 2: EVIL, 3: "c"}
    of_c = [each["name"] for each in events if each["ph"] == "X" and each["tid"] == 3]
    assert of_c == ["rows", "prefill", "decode"]
    assert {each["name"] for each in events if each["ph"] == "C"} == {
        "tokens", "rows in use", "free KV blocks",
    }  # fmt: skip

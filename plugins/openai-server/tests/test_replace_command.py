"""`tenonry replace`: parsing of its flags, and its messages when a server fails to comply."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tenonry.cli import main, make_parser
from tenonry.errors import ConfigError
from tenonry_openai_server.errors import APIError
from tenonry_openai_server.replace_command import changes_from
from tenonry_openai_server.routes.control import check_choice


def changes(*flags: str) -> dict[str, Any]:
    parser, _ = make_parser("replace")
    return changes_from(parser.parse_args(flags))


def test_flags_are_settings_of_the_new_engines():
    assert changes() == {}
    found = changes("--scheduler", "my:Mine", "--scheduler-option", "depth=3", "--max-num-seqs=1K")
    assert found == {
        "scheduler": {"name": "my:Mine", "options": {"depth": 3}},
        "max_num_seqs": 1024,
    }
    assert changes("--no-enable-prefix-caching") == {"enable_prefix_caching": False}
    with pytest.raises(ConfigError, match="--drafter-option needs --drafter"):
        changes("--drafter-option", "a=1")


def test_what_cannot_change_is_no_flag(capsys):
    with pytest.raises(SystemExit):
        changes("--dtype", "float16")
    assert "--dtype" in capsys.readouterr().err


@pytest.fixture
def answered():
    """A server that records requests, and returns one answer."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            asked.append((self.path, self.headers["authorization"], json.loads(body)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *arguments: Any) -> None:
            """Nothing."""

    status = 200
    text = b"{}"
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        def ask(code: int, body: bytes, *flags: str) -> Any:
            nonlocal status, text
            status = code
            text = body
            url = f"http://127.0.0.1:{server.server_port}"
            return main(["replace", "--url", url, *flags]), asked[-1]

        yield ask
        server.shutdown()
        thread.join()


def test_the_key_of_the_environment_and_the_answer(answered, capsys, monkeypatch):
    monkeypatch.setenv("TENONRY_API_KEY", "first,second")
    status, asked = answered(200, b"{}", "--scheduler", "static")
    assert (status, asked[0], asked[1]) == (0, "/replace", "Bearer first")
    assert asked[2] == {"changes": {"scheduler": "static"}}
    assert "the engines were replaced" in capsys.readouterr().out
    status, _ = answered(409, b'{"error": {"message": "no such plugin"}}', "--api-key", "k")
    assert status == 1
    assert "answered 409: no such plugin" in capsys.readouterr().err
    status, _ = answered(404, b"nothing", "--api-key", "k")
    assert status == 1
    assert "needs --enable-operator-routes" in capsys.readouterr().err


def test_a_server_that_is_not_there(capsys):
    assert main(["replace", "--url", "http://127.0.0.1:1"]) == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert main(["replace", "--url", "file:///etc/passwd"]) == 1
    assert "must begin with http" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["/tmp/x.py:X", {"name": "x.py:X", "options": {}}])
def test_classes_of_files_are_for_whoever_started_the_server(value):
    with pytest.raises(APIError, match="not taken over HTTP"):
        check_choice("scheduler", value, None)
    name = value if isinstance(value, str) else value["name"]
    check_choice("scheduler", value, name)
    check_choice("scheduler", "my_pkg:Mine", None)

"""Names and downloads (class V): no name leaves its place, no token reaches another host, no body is endless.

Real HTTP servers on this machine play the hub, a foreign host that it refers to, and hosts of images.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import ssl
import string
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath

import pytest

from tenonry.errors import ModelError, RequestError, TenonryError
from tenonry_hf_hub import hub, locate
from tenonry_hf_hub.hub import wanted_files
from tenonry_images import sources
from tenonry_images.sources import ImageSources

TOKEN = "hf_secretsecretsecretsecretsecret"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NUM_NAMES = 600
NUM_URLS = 600
PARTS = [
    "a", "..", ".", "", "org", "model", "host:8080", "127.0.0.1", "~", "%2e%2e", "\\", "\x00", "é", "@", "?x=1", "#",
    "http:", "https:", "file:", "C:", "x" * 200, "etc", "passwd", " ", "\n", "..\\..", "-", "--", ".git",
]  # fmt: skip
PROGRAM = """
import json, sys
from tenonry.config import EngineConfig
from tenonry_hf_hub.hooks import tenonry_resolve_model
try:
    print(json.dumps(tenonry_resolve_model(EngineConfig(model=sys.argv[1])).path))
except Exception as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
"""


class Recorder(BaseHTTPRequestHandler):
    """Keeps path and headers of each request; a subclass answers."""

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.server.seen.append((self.path, dict(self.headers)))
        status, data, headers = self.server.reply(self.path)
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(OSError):
                self.wfile.write(data)


@contextlib.contextmanager
def serving(host, reply) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer((host, 0), Recorder)
    server.seen, server.reply = [], reply
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def address(server) -> str:
    host, port = server.server_address[:2]
    return f"http://{host}:{port}"


def fuzzed_names() -> list[str]:
    chance = random.Random(22)
    names = [
        "a/../../b",
        "host:8080/x",
        "/etc/passwd",
        "//host/x",
        "http://host/x",
        "~root/x",
        "..",
        "a/..",
        "../a",
    ]
    while len(names) < NUM_NAMES:
        parts = [chance.choice(PARTS) for _ in range(chance.randint(1, 4))]
        names.append("/".join(parts) or "x")
    return names  # fmt: skip


def test_only_plain_ids_reach_the_hub(monkeypatch, tmp_path):
    """Each name is an existing folder, a rejected name, or an id without anything that a URL would interpret."""
    monkeypatch.chdir(tmp_path)
    asked = []

    def fetch(name, revision, *, weights):
        asked.append(name)
        raise ModelError("no network here")

    monkeypatch.setattr(hub, "fetch", fetch)
    for name in fuzzed_names():
        with pytest.raises(TenonryError):
            locate.locate(name)
    allowed = set(string.ascii_letters + string.digits + "_.-/")
    for name in asked:
        assert set(name) <= allowed, name
        assert name.count("/") <= 1
        assert not {"..", "."} & set(name.split("/")), name
    assert asked


def test_files_of_a_repository_stay_in_its_folder():
    chance = random.Random(23)
    names = []
    for _ in range(NUM_NAMES):
        parts = [chance.choice(PARTS) for _ in range(chance.randint(1, 4))]
        names.append(
            "/".join(parts) + chance.choice([".json", ".safetensors", ".jinja", ".txt", ""])
        )
    names += ["additional_chat_templates/../../x.jinja", "additional_chat_templates/a/b.jinja"]
    for name in wanted_files(names, weights=True):
        parts = name.replace("\\", "/").split("/")
        assert ".." not in parts, name
        assert not PurePosixPath(name).is_absolute()


@pytest.mark.parametrize("kind", ["api", "file"])
def test_a_token_never_goes_to_another_host(kind, tmp_path):
    """The hub redirects its answer, or a file, to a stranger, which may receive the request, but without the token."""
    with serving("127.0.0.2", lambda _: (404, b"no", {})) as stranger:

        def reply(path):
            elsewhere = (302, b"", {"Location": f"{address(stranger)}/taken"})
            if path.startswith("/api/"):
                siblings = [{"rfilename": "config.json"}, {"rfilename": "model.safetensors"}]
                body = {"id": "org/tiny", "sha": COMMIT, "siblings": siblings}
                return elsewhere if kind == "api" else (200, json.dumps(body).encode(), {})
            return elsewhere

        with serving("127.0.0.1", reply) as server:
            env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
            env |= {"HF_ENDPOINT": address(server), "HF_HOME": str(tmp_path), "HF_TOKEN": TOKEN}
            env |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"}
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, "org/tiny"],
                capture_output=True, text=True, check=True, env=env, timeout=29, cwd=tmp_path,
            )  # fmt: skip
            assert "error" in json.loads(done.stdout)
            assert any(TOKEN in str(headers) for _, headers in server.seen)
        assert not [one for one in stranger.seen if TOKEN in str(one)]
        assert TOKEN not in done.stdout + done.stderr


def fuzzed_urls() -> list[str]:
    chance = random.Random(24)
    hosts = [
        "bad.test", "good.test.bad.test", "good.test@bad.test", "good.test:8443", "bad.test#good.test", "127.0.0.1",
        "[::1]", "good.test\\@bad.test", "user:pass@good.test", "good.test%2f@bad.test", "localhost", "2130706433",
        "0x7f.1", "good.test.", "good.test%00", "ｇood.test", "good.test:443@bad.test", "good.test\t.bad.test", "",
    ]  # fmt: skip
    schemes = ["https", "HTTPS", "http", "file", "ftp", "gopher", "https:https", " https", ""]
    urls = []
    for _ in range(NUM_URLS):
        path = "/".join(chance.choice(PARTS) for _ in range(chance.randint(0, 4)))
        urls.append(f"{chance.choice(schemes)}://{chance.choice(hosts)}/{path}")
    return urls


def test_images_are_asked_of_allowed_hosts_only(monkeypatch):
    """No name of another host is even looked up, whatever the URL pretends."""
    looked_up = []

    def lookup(host, *_, **__):
        looked_up.append(host)
        raise OSError

    monkeypatch.setattr(sources.socket, "getaddrinfo", lookup)
    reader = ImageSources(("good.test",), 1000)
    for url in fuzzed_urls():
        with pytest.raises(RequestError):
            reader.read(url, "image")
    assert set(looked_up) <= {"good.test"}
    with pytest.raises(RequestError):
        reader.read("https://good.test/a", "image")
    assert "good.test" in looked_up


class PlainTls(ssl.SSLContext):
    """Fake of TLS: the bytes pass through a real socket unchanged."""

    def wrap_socket(self, plain, *, server_hostname):
        assert server_hostname == "good.test"
        return plain


@pytest.fixture
def read_image(monkeypatch):
    def read(server, max_bytes=1000):
        host, port = server.server_address[:2]
        monkeypatch.setattr(sources, "HTTPS_PORT", port)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]
        monkeypatch.setattr(sources.socket, "getaddrinfo", lambda *_, **__: found)
        tls = PlainTls(ssl.PROTOCOL_TLS_CLIENT)
        reader = ImageSources(("good.test",), max_bytes, is_allowed=lambda _: True, tls=tls)
        return reader.read("https://good.test/a", "image")

    return read


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_of_images_are_not_followed(status, read_image):
    with serving("127.0.0.2", lambda _: (200, b"x", {})) as stranger:
        location = {"Location": f"{address(stranger)}/x"}
        with (
            serving("127.0.0.1", lambda _: (status, b"", location)) as server,
            pytest.raises(RequestError, match=f"{status}; redirects are not followed"),
        ):
            read_image(server)
        assert not stranger.seen


@pytest.mark.parametrize("claimed", [None, "5", "999999999999"])
def test_a_body_ends_at_the_limit_whatever_it_claims(claimed, read_image):
    """The server sends far more than the limit; reading stops there, or at the declared end."""
    headers = {} if claimed is None else {"Content-Length": claimed}
    with serving("127.0.0.1", lambda _: (200, bytes(1 << 22), headers)) as server:
        if claimed == "5":
            assert read_image(server) == bytes(5)
        else:
            with pytest.raises(RequestError, match="at most 1000 bytes"):
                read_image(server)

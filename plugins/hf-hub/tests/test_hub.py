"""Hub ids, against a small server on this machine that answers as the hub does.

The library reads its settings when it is imported, so each look-up runs in a fresh interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tenonry_hf_hub.hub import wanted_files

pytestmark = pytest.mark.integration

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": json.dumps(
        {"architectures": ["A"], "max_position_embeddings": 8, "vocab_size": 4}
    ).encode(),
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"x",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"pickle",
    "onnx/model.safetensors": b"other",
    "modeling_odd.py": b"raise SystemExit",
}
PROGRAM = """
import json, sys
from pathlib import Path
from tenonry.config import EngineConfig
from tenonry_hf_hub.hooks import tenonry_resolve_model
try:
    info = tenonry_resolve_model(EngineConfig(**json.loads(sys.argv[1])))
    files = sorted(str(p.relative_to(info.path)) for p in Path(info.path).rglob("*") if not p.is_dir())
    print(json.dumps({"commit": info.commit, "files": files, "len": info.max_model_len}))
except Exception as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
"""


class Hub(BaseHTTPRequestHandler):
    """The few routes of the hub that a download needs."""

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET(body=False)

    def do_GET(self, body=True):
        self.server.paths.append(self.path)
        path = self.path.partition("?")[0].removeprefix("/")
        if path.startswith("api/models/org/gated"):
            return self.reply(
                403, b"no", body, {"X-Error-Code": "GatedRepo", "X-Error-Message": "no"}
            )
        if not path.startswith(("api/models/org/tiny", "org/tiny")):
            return self.reply(
                404, b"no", body, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "no"}
            )
        if "no-such-revision" in path:
            return self.reply(
                404, b"no", body, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "no"}
            )
        if "/tree/" in path:
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
                for name, data in FILES.items()
            ]
            return self.reply(200, json.dumps(entries).encode(), body, {"X-Repo-Commit": COMMIT})
        if path.startswith("api/"):
            info = {
                "id": "org/tiny",
                "sha": COMMIT,
                "siblings": [{"rfilename": name} for name in self.server.names],
            }
            return self.reply(200, json.dumps(info).encode(), body, {})
        name = path.partition(f"/resolve/{COMMIT}/")[2]
        if name not in FILES:
            return self.reply(
                404, b"no", body, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "no"}
            )
        return self.reply(
            200, FILES[name], body, {"X-Repo-Commit": COMMIT, "ETag": f'"{abs(hash(name)):040x}"'}
        )

    def reply(self, status, data, body, headers):
        self.send_response(status)
        for key, value in {
            "Content-Length": str(len(data)),
            "Content-Type": "application/json",
            **headers,
        }.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.paths, server.names = [], list(FILES)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def look_up(tmp_path):
    def run(server, offline=False, **config):
        address = f"http://127.0.0.1:{server.server_address[1]}" if server else "http://127.0.0.1:9"
        env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        env |= {
            "HF_ENDPOINT": address,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        env |= {"HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"} | (
            {"HF_HUB_OFFLINE": "1"} if offline else {}
        )
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps({"model": "org/tiny", **config})],
            capture_output=True, text=True, check=True, env=env, timeout=25, cwd=tmp_path,
        )  # fmt: skip
        return json.loads(done.stdout) | {"log": done.stderr}

    return run


def test_download_takes_one_commit_and_only_what_is_needed(hub, look_up):
    found = look_up(hub)
    assert found.get("commit") == COMMIT, found
    assert "%" not in found["log"], "no progress bars in log files"
    assert found["files"] == [
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    resolved = [path for path in hub.paths if "/resolve/" in path]
    assert resolved
    assert all(f"/resolve/{COMMIT}/" in path for path in resolved)


def test_dummy_weights_need_no_download_of_weights(hub, look_up):
    assert "model.safetensors" not in look_up(hub, load_format="dummy")["files"]


def test_cache_serves_offline_and_when_the_hub_is_away(hub, look_up):
    assert look_up(hub)["commit"] == COMMIT
    seen = len(hub.paths)
    assert look_up(hub, offline=True)["commit"] == COMMIT
    assert look_up(hub, revision=COMMIT)["commit"] == COMMIT
    assert len(hub.paths) == seen, "neither of the two may ask the hub"
    found = look_up(None)
    assert found["commit"] == COMMIT
    assert "from the cache" in found["log"]


def test_partial_cache_is_not_used(hub, look_up):
    look_up(hub, load_format="dummy")
    assert "no complete copy" in look_up(None)["error"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model": "org/absent"}, ["org/absent", "no such model", "local folder"]),
        ({"model": "org/gated"}, ["org/gated", "accept its terms", "HF_TOKEN"]),
        ({"revision": "no-such-revision"}, ["no revision 'no-such-revision'"]),
    ],
)
def test_refusals_of_the_hub(hub, look_up, config, words):
    error = look_up(hub, **config)["error"]
    assert error.startswith("ModelError")
    assert [word for word in words if word not in error] == []


def test_repository_without_safetensors(hub, look_up):
    hub.names = ["config.json", "pytorch_model.bin"]
    assert "no *.safetensors" in look_up(hub)["error"]


def test_hub_out_of_reach(look_up):
    error = look_up(None)["error"]
    assert "did not answer" in error
    assert "local folder" in error


def test_wanted_files_leaves_copies_and_code_out():
    names = [
        "model.safetensors",
        "consolidated.safetensors",
        "x.py",
        "additional_chat_templates/tool_use.jinja",
        "a/b.json",
    ]
    assert wanted_files(names, weights=True) == [
        "additional_chat_templates/tool_use.jinja",
        "model.safetensors",
    ]
    assert wanted_files(["consolidated.safetensors"], weights=True) == ["consolidated.safetensors"]

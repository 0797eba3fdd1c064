"""Faults of a first use, each met for real: one sentence that names the fault, and the remedy with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from host_server import MODELS, NULL, HostServer

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "plugins" / "kernels-cpu"
OLD_PYTHON = (
    "import sys; sys.version_info = (3, 10, 13); from dev import verbs; verbs.need_python()"
)
UNREACHABLE = """
import sys
from pathlib import Path
from dev import programs
programs.pip(Path(sys.executable), "--dry-run", "no-such-distribution", log=Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostServer]:
    """A server of two models, neither of them loaded."""
    file = tmp_path_factory.mktemp("models") / "models.yaml"
    file.write_text(MODELS)
    with contextlib.closing(HostServer(file, *NULL)) as made:
        made.ready()
        yield made


@pytest.fixture
def printed(tmp_path: Path) -> Callable[..., str]:
    """Returns the output of Python with arguments, which fails."""

    def run(*words: object, **environment: str) -> str:
        env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        return done.stdout + done.stderr

    return run


def folder_that_lacks_a_distribution(printed, tmp_path):
    (tmp_path / "files").mkdir()
    return printed(ROOT / "dev.py", "release", "--check", tmp_path / "files")


def old_python(printed, tmp_path):
    return printed("-c", OLD_PYTHON, PATH=str(tmp_path))


def no_compiler(printed, tmp_path):
    shutil.copytree(KERNELS / "native", tmp_path / "native")
    shutil.copy(KERNELS / "hatch_build.py", tmp_path)
    return printed("hatch_build.py", PATH=str(tmp_path), CC="")


def no_network(printed, tmp_path):
    """A port on which nothing listens."""
    index = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull}
    lists = {"PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "PIP_RETRIES": "1"}
    return printed("-c", UNREACHABLE, tmp_path / "pip.log", **index, **lists)


def port_in_use(printed, tmp_path, server):
    (tmp_path / "models.yaml").write_text(MODELS)
    words = server.words(tmp_path / "models.yaml")[1:]
    return printed(*words, "--port", server.url.rpartition(":")[2], *NULL)


def page_under_another_host_name(server):
    server.headers = {"host": "far.example:8000"}
    try:
        status, text = server.get("/")
    finally:
        server.headers = {}
    assert status == 403
    return text


def unknown_model_of_several(server):
    status, text = server.get("/v1/models/nope")
    assert status == 404
    return text


FAULTS = [
    (folder_that_lacks_a_distribution, "no wheel of tenonry-routes", "python3 dev.py release --out FOLDER"),
    (old_python, "needs Python 3.11 to 3.14; this is 3.10", "Install one and run: python3.13 dev.py"),
    (no_compiler, "no C compiler (cc, gcc, clang), so no kernels", "install gcc and install tenonry-kernels-cpu again"),
    (no_network, "pip cannot reach the package index", "connect this machine, or set PIP_INDEX_URL"),
    (port_in_use, "is in use by process", "stop that process or choose another --port"),
    (page_under_another_host_name, "local host names only, not to 'far.example'", "allow it with --allowed-hosts"),
    (unknown_model_of_several, "the model 'nope' is not served here", "served: tiny, other"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "sentence", "remedy"), FAULTS, ids=[fault.__name__ for fault, *_ in FAULTS]
)
def test_a_fault_is_one_sentence_with_its_remedy(
    request: pytest.FixtureRequest, fault: Callable[..., str], sentence: str, remedy: str
):
    names = fault.__code__.co_varnames[: fault.__code__.co_argcount]
    text = fault(**{name: request.getfixturevalue(name) for name in names})
    assert sentence in text
    assert remedy in text
    assert "Traceback" not in text

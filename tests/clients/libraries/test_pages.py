"""Programs of the pages `use-with-…` that need a client library run in its environment, against a real server."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import HERE, Unavailable, python_with
from server_process import Server

from tenonry_demo_model import model_path

pytestmark = pytest.mark.timeout(600)
PAGES = sorted((HERE.parents[2] / "docs" / "how-to").glob("use-with-*.md"))
PROGRAM = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = {page.stem: PROGRAM.findall(page.read_text("utf-8")) for page in PAGES}
# The programs of a page run one after the other: importing a library takes far longer than they do.
RUN_ALL = """
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
    print(end="\\0")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    template = str(HERE / "tools.jinja")
    options = ("--load-format", "auto", "--device", "cpu", "--chat-template", template)
    made = Server(model_path(), *options)
    try:
        yield made.ready()
    finally:
        made.close()


@pytest.mark.nightly
@pytest.mark.parametrize("page", [page for page, texts in PROGRAMS.items() if texts])
def test_programs_of_pages_print_an_answer(page, server, tmp_path: Path):
    try:
        python = python_with("requirements.txt")
    except Unavailable as error:
        pytest.skip(str(error))
    files = []
    for number, text in enumerate(PROGRAMS[page]):
        translated = text.replace("http://127.0.0.1:8000", server.url)
        translated = translated.replace('"demo"', '"tiny"').replace(
            '"openai/demo"', '"openai/tiny"'
        )
        assert translated != text
        files.append(tmp_path / f"{page}-{number}.py")
        files[-1].write_text(translated, "utf-8")
    command = [*python, "-c", RUN_ALL, *map(str, files)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    *printed, rest = ended.stdout.split("\0")
    assert len(printed) == len(files)
    assert all(text.strip() for text in printed)
    assert not rest


def test_there_are_programs():
    assert {page for page, texts in PROGRAMS.items() if texts} >= {
        "use-with-langchain",
        "use-with-litellm",
    }

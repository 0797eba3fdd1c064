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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PAGES = sorted((HERE.parents[2] / "docs" / "how-to").glob("use-with-*.md"))
PROGRAM = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = [
    (page.stem, number, text)
    for page in PAGES
    for number, text in enumerate(PROGRAM.findall(page.read_text("utf-8")))
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    template = str(HERE / "tools.jinja")
    options = ("--load-format", "auto", "--device", "cpu", "--chat-template", template)
    made = Server(model_path(), *options)
    try:
        yield made.ready()
    finally:
        made.close()


@pytest.mark.parametrize(("page", "number", "text"), PROGRAMS, ids=lambda each: str(each)[:24])
def test_programs_of_pages_print_an_answer(page, number, text, server, tmp_path: Path):
    try:
        python = python_with("requirements.txt")
    except Unavailable as error:
        pytest.skip(str(error))
    translated = text.replace("http://127.0.0.1:8000", server.url)
    translated = translated.replace('"demo"', '"tiny"').replace('"openai/demo"', '"openai/tiny"')
    assert translated != text
    program = tmp_path / f"{page}-{number}.py"
    program.write_text(translated, "utf-8")
    ended = subprocess.run(
        [*python, str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()


def test_there_are_programs():
    assert {page for page, _, _ in PROGRAMS} >= {"use-with-langchain", "use-with-litellm"}

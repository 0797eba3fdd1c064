"""The kernel and one distribution by a third party serve: offline, on an event loop and over HTTP (design.md 1).

In an environment that has no other distribution of this project, and nothing that the kernel does not require.
"""

from __future__ import annotations

import importlib.metadata
import json
import signal
import subprocess
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

FOREIGN = Path(__file__).parent / "foreign" / "foreign_engine"
KERNEL = Path(__file__).resolve().parents[2] / "core" / "src" / "tenonry"
ENTRY_POINTS = """
[tenonry.plugins]
counter = foreign_engine.model

[tenonry.executors]
solo = foreign_engine.executor:SoloExecutor

[tenonry.workers]
counting = foreign_engine.worker:CountingWorker

[tenonry.schedulers]
queue = foreign_engine.scheduler:QueueScheduler

[tenonry.io_processors]
bytes = foreign_engine.text:ByteProcessor

[tenonry.commands]
serve-counter = foreign_engine.serve:ServeCounter
"""
METADATA = (
    "Metadata-Version: 2.1\nName: foreign-engine\nVersion: 1.0\nRequires-Dist: tenonry>=0.1,<0.2\n"
)
OFFLINE = """
from foreign_engine import CHOICES
from tenonry import LLM, SamplingParams
with LLM(**CHOICES) as llm:
    for output in llm.generate(["abc", "xy"], SamplingParams(max_tokens=4)):
        print(output.outputs[0].text, output.outputs[0].finish_reason)
"""
ASYNC = """
import asyncio
from foreign_engine import CHOICES
from tenonry import AsyncLLM, EngineConfig, SamplingParams

async def last(llm, prompt):
    async for output in llm.generate(prompt, SamplingParams(max_tokens=4), prompt):
        pass
    return output.outputs[0].text

async def main(llm):
    texts = await asyncio.gather(*(last(llm, "abcdefgh"[: i % 8 + 1] + str(i)) for i in range(20)))
    print(texts[0], texts[9])

llm = AsyncLLM(EngineConfig(max_num_seqs=4, max_num_batched_tokens=5, **CHOICES))
try:
    asyncio.run(main(llm))
finally:
    llm.shutdown()
"""


def required(name: str) -> set[str]:
    """Names of the distributions that one needs, itself included; extras apart."""
    names: set[str] = set()
    todo = [name]
    while todo:
        found = todo.pop()
        if found not in names:
            names.add(found)
            needs = map(Requirement, importlib.metadata.requires(found) or ())
            todo += [
                each.name
                for each in needs
                if not each.marker or each.marker.evaluate({"extra": ""})
            ]
    return names


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with links to the kernel's requirements, and the foreign distribution."""
    folder = tmp_path_factory.mktemp("alone")
    venv.EnvBuilder(symlinks=True).create(folder)
    site = next(folder.glob("lib/python*/site-packages"))
    for name in required("tenonry"):
        dist = importlib.metadata.distribution(name)
        for top in {
            file.parts[0] for file in dist.files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            if not top.endswith(".pth"):
                (site / top).symlink_to(Path(str(dist.locate_file(top))))
    (site / "tenonry").symlink_to(KERNEL)
    (site / "foreign_engine").symlink_to(FOREIGN)
    info = site / "foreign_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA, "utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, "utf-8")
    return folder / "bin" / "python"


def run(python: Path, *words: str) -> str:
    ended = subprocess.run([python, "-P", *words], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_nothing_else_of_this_project_is_there(python):
    program = (
        "import importlib.metadata as m, json; "
        "print(json.dumps(sorted(d.name for d in m.distributions() if 'tenonry' in d.name)))"
    )
    assert json.loads(run(python, "-c", program)) == ["tenonry"]
    program = "import tenonry.client.async_llm, sys; print('torch' in sys.modules)"
    assert run(python, "-c", program) == "False\n"


def test_offline(python):
    assert run(python, "-c", OFFLINE) == "defg length\nz{|} length\n"


def test_on_an_event_loop(python):
    """More requests than rows, and prompts that are longer than a step."""
    assert run(python, "-c", ASYNC) == "1234 :;<=\n"


def test_a_prompt_of_another_form_is_refused_by_the_processor(python):
    program = OFFLINE.replace('["abc", "xy"]', '[{"document": "abc"}]')
    ended = subprocess.run(
        [python, "-P", "-c", program], check=False, capture_output=True, text=True
    )
    assert "the prompt must be a text" in ended.stderr


@pytest.fixture
def port(python: Path) -> Iterator[int]:
    words = [python, "-P", "-m", "tenonry", "serve-counter", "--length", "5"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline())
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def test_over_http(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/abc", timeout=60) as answer:
        assert answer.read() == b"defgh"


def test_the_command_is_listed(python):
    assert "serve-counter" in run(python, "-m", "tenonry", "--help")

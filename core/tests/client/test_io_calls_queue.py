"""A full queue of an IO processor's helper is no failure of the plugin: the caller may try again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenonry.client.io_calls import io_call, io_fault, post_processor
from tenonry.config import PluginChoice
from tenonry.errors import EngineGenerateError, QueueFullError, RequestError
from tenonry.outputs import RequestOutput
from tenonry.plugin.manager import qualified_record
from tenonry.plugin.plan import load_class
from tenonry_testkit.kernel.output_frames import IO_CONTEXT


@pytest.mark.parametrize("error", [QueueFullError("full"), RequestError("wrong")])
def test_errors_of_the_request_pass(error):
    with pytest.raises(type(error)), io_call(object(), "r", "process_prompt"):
        raise error


LOOSE = """
from tenonry_testkit.fakes import ByteIOProcessor
class Mine(ByteIOProcessor):
    def post_process(self, output): return None
"""


def test_a_class_of_a_file_is_named_by_the_file(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(LOOSE)
    found = load_class(qualified_record("io_processor", PluginChoice(name=f"{file}:Mine")))
    io = found(IO_CONTEXT)
    fault = str(io_fault(io, "r", "push", ValueError("no")))
    assert (
        fault
        == f"request r failed: plugin Mine at {file}:3 (no distribution) failed in push: ValueError: no"
    )
    output = RequestOutput("r", None, [], [], finished=True)
    with pytest.raises(
        EngineGenerateError, match=r"in post_process: .*must be of type RequestOutput"
    ):
        post_processor(io)(output)


def test_others_name_the_plugin():
    with (
        pytest.raises(EngineGenerateError, match="process_prompt"),
        io_call(object(), "r", "process_prompt"),
    ):
        raise KeyError("x")

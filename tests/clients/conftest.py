"""One server with tools and reasoning for all tests of clients in this folder; starts when first needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "integration"))

from server_process import Server

from tenonry_demo_model import model_path

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def agent_server() -> Iterator[Server]:
    """The demo model behind a chat template that shows tools, calls and reasoning."""
    template = str(HERE / "agents.jinja")
    options = ("--load-format", "auto", "--device", "cpu", "--chat-template", template)
    server = Server(Path(model_path()), *options)
    try:
        yield server.ready()
    finally:
        server.close()

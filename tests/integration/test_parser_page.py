"""The page about tool calls lists every output parser that comes along, and vLLM's names of them."""

from __future__ import annotations

import re
from importlib.metadata import entry_points

from page_reader import ROOT

from tenonry_openai_server.settings import FAMILIAR_PARSERS, FAMILIAR_REASONING

PAGE = ROOT / "docs" / "how-to" / "call-tools.md"
ROW = re.compile(r"^\| `([\w.-]+)` \|.*\|([^|]*)\|$", re.MULTILINE)
GROUP = "tenonry.output_parsers"
DISTRIBUTION = "tenonry-output-parsers"


def test_page_lists_every_parser_once():
    listed = [name for name, _ in ROW.findall(PAGE.read_text("utf-8"))]
    installed = [
        entry.name
        for entry in entry_points(group=GROUP)
        if entry.dist is not None and entry.dist.name == DISTRIBUTION
    ]
    assert sorted(listed) == sorted(installed)


def test_page_lists_the_names_of_vllm():
    listed = {
        (alias, name)
        for name, aliases in ROW.findall(PAGE.read_text("utf-8"))
        for alias in re.findall(r"`([\w-]+)`", aliases)
    }
    assert listed == {*FAMILIAR_PARSERS.items(), *FAMILIAR_REASONING.items()}

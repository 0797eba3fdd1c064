"""The verbs on the command line: all are found, distinguished in its help, and have help of their own."""

from __future__ import annotations

import pytest

from tenonry.cli import COMMANDS, main, make_parser
from tenonry.plugin.discovery import find_entry_point, not_found

VERBS = ("generate", "chat", "plugins", "ps", "keys", "completion")


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_has_a_line_for_each(verb, capsys):
    _, command = make_parser(verb)
    assert main(["--help"]) == 0
    assert f"  {verb:<12} {command.summary} (tenonry-commands " in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_each_is_found_and_says_what_it_does(verb):
    parser, command = make_parser(verb)
    assert (parser.prog, parser.description) == (f"tenonry {verb}", command.summary)
    assert command.summary


@pytest.mark.parametrize("verb", VERBS)
def test_the_kernel_knows_the_package_of_each(verb):
    found = find_entry_point(COMMANDS, verb)
    assert found is not None
    assert f"pip install {found.distribution}" in str(not_found(COMMANDS, verb))

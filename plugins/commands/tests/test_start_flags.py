"""Flags that another package checks: without it they are refused with the command that installs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenonry.errors import PluginNotFound
from tenonry_commands.start_flags import START_FLAGS, run_start_flags
from tenonry_testkit.plugins import TmpPlugins


@pytest.mark.parametrize("flag", START_FLAGS)
def test_a_flag_of_a_missing_package_names_it(flag: str, tmp_path: Path):
    with (
        TmpPlugins(tmp_path / "site"),
        pytest.raises(PluginNotFound, match=f"{flag} needs .*pip install tenonry-author-tools"),
    ):
        run_start_flags(["model", flag])


def test_words_without_such_flags_are_as_they_were():
    assert run_start_flags(["model", "--seed", "3"]) == ["model", "--seed", "3"]

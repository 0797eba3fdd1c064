"""A start names the .pth files of the plugins that it uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenonry.info import PluginRecord
from tenonry_commands.pth_files import warn_of_pth_files
from tenonry_testkit.plugins import TmpPlugins


@pytest.mark.parametrize(
    ("name", "text", "acts"),
    [
        ("acme.pth", "import acme\n", True),
        ("__editable__.acme.pth", "/a/folder\n", False),
        ("__editable__.acme.pth", "import acme\n", True),
    ],
)
def test_each_file_is_named_once(name: str, text: str, acts: bool, tmp_path: Path, caplog):
    with TmpPlugins(tmp_path / "site", see_installed=True) as site:
        info = site.distribution("acme-stats", "2.5", modules={"acme_stats": ""})
        (site.folder / name).write_text(text)
        (info / "RECORD").write_text(f"{name},,\n")
        record = PluginRecord("stat_logger", "acme", "acme_stats:Mine", "acme-stats", "2.5")
        warn_of_pth_files([record, record, PluginRecord("scheduler", "loose", "mine:Mine")])
    start = f"acme-stats 2.5: {site.folder / name}:1: runs whenever any Python"
    assert [each.startswith(start) for each in caplog.messages] == [True] * acts

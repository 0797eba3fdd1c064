"""`tenonry completion SHELL`: scripts that contain the verbs and flags of all installed plugins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tenonry.cli import main
from tenonry.plugin.discovery import installed
from tenonry_commands import completion
from tenonry_testkit.plugins import TmpPlugins

ACT = '''
    from tenonry.interfaces.command import Command

    class Act(Command):
        """Does what it is told."""
        summary = "Does what it is told."
        def add_arguments(self, parser):
            parser.add_argument("--number", type=int, default=0)
        def run(self, args):
            return 0
'''


@pytest.fixture(autouse=True)
def _few_verbs(site: TmpPlugins, monkeypatch: pytest.MonkeyPatch) -> None:
    """One from elsewhere, and a few of those that are always there."""
    site.distribution(
        "acts", entry_points={"tenonry.commands": {"act": "acts:Act"}}, modules={"acts": ACT}
    )
    kept = {"act", "generate", "plugins", "completion"}
    monkeypatch.setattr(
        completion, "installed", lambda kind: [e for e in installed(kind) if e.name in kept]
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_is_a_script_that_knows_verbs_and_flags(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    flags = (
        () if shell == "tcsh" else ("--max-model-len", "--number")
    )  # there it has the verbs only
    for word in ("generate", "act", *flags):
        assert word in script


@pytest.mark.integration
def test_bash_takes_it(capsys, tmp_path: Path):
    main(["completion", "bash"])
    path = tmp_path / "completion.sh"
    path.write_text(capsys.readouterr().out, "utf-8")
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_its_library_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install" in capsys.readouterr().err

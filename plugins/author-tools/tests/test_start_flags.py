"""`--safe-mode` and `--locked`: what they leave out or refuse is not imported, before a verb and behind it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenonry.cli import VerbParser, main
from tenonry.errors import ConfigError, PluginError
from tenonry.plugin.discovery import EXCLUDED
from tenonry_author_tools import first_party
from tenonry_commands.arguments import add_engine_arguments
from tenonry_commands.start_flags import run_start_flags
from tenonry_testkit.plugins import TmpPlugins

POINTS = {
    "tenonry.plugins": {"acme": "acme_hooks"},
    "tenonry.commands": {"acme": "acme_hooks:Command"},
    "tenonry.schedulers": {"acme": "acme_hooks:Scheduler"},
}


@pytest.fixture
def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_outside_settings: None
) -> Iterator[TmpPlugins]:
    """With the distribution `acme`, whose hook module must never be imported."""
    monkeypatch.setenv(EXCLUDED, "")  # restored at the end
    monkeypatch.chdir(tmp_path)
    with TmpPlugins(tmp_path / "site", see_installed=True) as plugins:
        modules = {"acme_hooks": "raise OSError('imported')"}
        info = plugins.distribution("acme", "2.5", entry_points=POINTS, modules=modules)
        (info / "RECORD").write_text("acme_hooks.py,,\n")
        yield plugins


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = VerbParser("tenonry generate")
    add_engine_arguments(parser)
    return parser


class TestSafeMode:
    def test_plugins_of_others_are_left_out_and_named(self, site, capsys):
        assert main(["--safe-mode", "plugins", "list"]) == 0
        captured = capsys.readouterr()
        assert "acme" not in captured.out
        assert captured.err.endswith("safe mode: disabled acme 2.5\n")
        assert "acme_hooks" not in sys.modules

    def test_their_verbs_are_unknown(self, site, capsys):
        assert main(["--safe-mode", "acme"]) == 2
        assert "no command is called 'acme'" in capsys.readouterr().err

    def test_the_flag_may_stand_behind_the_verb(self, site, parser):
        assert parser.parse_args(["demo", "--safe-mode", "--seed", "3"]).seed == 3
        assert os.environ[EXCLUDED] == "acme"
        assert "acme_hooks" not in sys.modules

    def test_a_class_of_theirs_is_refused(self, site, capsys):
        words = ["--safe-mode", "plugins", "show", "acme_hooks:Scheduler"]
        assert main(words) == 1
        assert "acme is excluded" in capsys.readouterr().err

    def test_what_is_excluded_already_stays_excluded(self, site, monkeypatch):
        monkeypatch.setenv(EXCLUDED, "tenonry-bench")
        run_start_flags(["--safe-mode"])
        assert os.environ[EXCLUDED] == "acme,tenonry-bench"

    def test_text_behind_two_dashes_is_no_flag(self, site):
        assert run_start_flags(["a", "--", "--safe-mode"]) == ["a", "--", "--safe-mode"]
        assert os.environ[EXCLUDED] == ""


@pytest.mark.slow
class TestLocked:
    def test_an_installation_as_it_was_locked_starts(self, site, capsys):
        assert main(["plugins", "lock"]) == 0
        assert main(["--locked", "--safe-mode", "plugins", "list"]) == 0
        assert run_start_flags(["a", "--locked"]) == ["a"]
        assert "acme_hooks" not in sys.modules

    def test_differences_and_their_remedies_are_in_one_error(self, site, capsys):
        main(["plugins", "lock"])
        (site.folder / "acme_hooks.py").write_text("x = 1\n")
        site.distribution("more", entry_points={"tenonry.workers": {"more": "more:More"}})
        capsys.readouterr()
        assert main(["--locked", "generate", "Hello"]) == 1
        error = capsys.readouterr().err
        assert "files of acme 2.5 have changed: reinstall it" in error
        assert "more is not locked: uninstall it" in error
        assert "to lock again: tenonry plugins lock tenonry.lock" in error
        assert "acme_hooks" not in sys.modules

    def test_the_flag_may_stand_behind_the_verb(self, site, parser):
        main(["plugins", "lock"])
        (site.folder / "acme_hooks.py").write_text("raise OSError('imported again')\n")
        with pytest.raises(PluginError, match="files of acme"):
            parser.parse_args(["demo", "--locked"])
        assert "acme_hooks" not in sys.modules

    def test_without_a_lock_the_start_is_refused(self, site):
        with pytest.raises(ConfigError, match="create it with: tenonry plugins lock"):
            run_start_flags(["--locked"])


def test_newer_distributions_of_the_checkout_are_first_party(
    site: TmpPlugins, tmp_path: Path, monkeypatch
):
    """The metadata of an editable kernel are as old as its last installation."""
    site.distribution("tenonry-newer", entry_points={"tenonry.workers": {"newer": "newer:N"}})
    site.distribution("tenonry-alien", entry_points={"tenonry.workers": {"alien": "alien:A"}})
    folders = {"tenonry": tmp_path / "core", "tenonry-newer": tmp_path / "plugins/newer"}
    monkeypatch.setattr(first_party, "source_folder", lambda dist: folders.get(dist.name))
    assert "tenonry-newer" in first_party.first_party()
    others = first_party.third_party()
    assert "tenonry-newer" not in others
    assert {"acme", "tenonry-alien"} <= others.keys()


def test_the_source_of_a_linked_distribution_is_found(site: TmpPlugins, tmp_path: Path):
    folder = tmp_path / "mine"
    (folder / "src").mkdir(parents=True)
    (folder / "pyproject.toml").write_text("")
    info = site.distribution("mine")
    (info / "RECORD").write_text("_editable_impl_mine.pth,,\n")
    (site.folder / "_editable_impl_mine.pth").write_text(f"{folder / 'src'}\n")
    found = {name: first_party.source_folder(dist) for name, dist in first_party.distributions()}
    assert found["mine"] == folder
    assert found["acme"] is None

"""`tenonry plugins lock`: a lock names what changed in an installation, and how to undo it."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenonry.cli import main
from tenonry_author_tools.lock import content_hash, platform_name
from tenonry_testkit.plugins import TmpPlugins

pytestmark = pytest.mark.slow  # hashes the files of all distributions

LOGGERS = {"tenonry.stat_loggers": {"acme": "acme_logger:Mine"}}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TmpPlugins]:
    """With the distribution `acme`, whose module must never be imported."""
    monkeypatch.chdir(tmp_path)
    with TmpPlugins(tmp_path / "site", see_installed=True) as plugins:
        modules = {"acme_logger": "raise OSError('imported')"}
        info = plugins.distribution("acme", "2.5", entry_points=LOGGERS, modules=modules)
        (info / "RECORD").write_text("acme_logger.py,,\nacme-2.5.dist-info/METADATA,,\n")
        yield plugins


def check(capsys: pytest.CaptureFixture[str]) -> str:
    """Compare with the lock; returns the error, if there is one."""
    capsys.readouterr()
    status = main(["plugins", "lock", "--check"])
    error = capsys.readouterr().err
    assert status == bool(error)
    return error


def test_an_installation_is_as_it_was_locked(site: TmpPlugins, capsys):
    assert main(["plugins", "lock"]) == 0
    content = json.loads(Path("tenonry.lock").read_text())
    locked = content["platforms"][platform_name()]
    assert locked["acme"]["version"] == "2.5"
    assert {"tenonry", "tenonry-commands"} < locked.keys()
    assert check(capsys) == ""
    assert "acme_logger" not in sys.modules


def test_changed_files_are_named(site: TmpPlugins, capsys):
    main(["plugins", "lock"])
    (site.folder / "acme_logger.py").write_text("x = 1\n")
    assert "files of acme 2.5 have changed: reinstall it" in check(capsys)


def test_other_distributions_are_named(site: TmpPlugins, capsys):
    main(["plugins", "lock"])
    site.distribution("more", entry_points={"tenonry.workers": {"more": "more:More"}})
    assert "more is not locked: uninstall it" in check(capsys)


@pytest.mark.parametrize(("version", "text"), [
    ("2.6", "acme is 2.5: pip install acme==2.6"), (None, "acme is not locked"),
])  # fmt: skip
def test_other_versions_are_named(version: str | None, text: str, site: TmpPlugins, capsys):
    main(["plugins", "lock"])
    file = Path("tenonry.lock")
    content = json.loads(file.read_text())
    locked = content["platforms"][platform_name()]
    if version is None:
        del locked["acme"]
    else:
        locked["acme"]["version"] = version
    locked["gone"] = {"version": "1.0", "sha256": ""}
    file.write_text(json.dumps(content))
    error = check(capsys)
    assert text in error
    assert "gone is not installed: pip install gone==1.0" in error


def test_other_platforms_are_kept(site: TmpPlugins, capsys):
    file = Path("tenonry.lock")
    file.write_text(json.dumps({"format": 1, "platforms": {"other": {}}}))
    assert f"has no platform {platform_name()}, only other" in check(capsys)
    main(["plugins", "lock"])
    assert json.loads(file.read_text())["platforms"].keys() == {"other", platform_name()}


@pytest.mark.parametrize("text", [
    "", "[]", "{}", '{"format": 9, "platforms": {}}', '{"format": 1, "platforms": []}',
    '{"format": 1, "platforms": {"other": {"acme": {}}}}',
])  # fmt: skip
def test_files_that_are_no_lock_are_refused(text: str, site: TmpPlugins, capsys):
    Path("tenonry.lock").write_text(text)
    assert "tenonry.lock" in check(capsys)


def test_a_missing_lock_is_named_with_its_command(site: TmpPlugins, capsys):
    assert check(capsys).endswith("tenonry.lock not found; create it with: tenonry plugins lock\n")


def test_a_folder_that_is_missing_is_named(site: TmpPlugins, capsys):
    assert main(["plugins", "lock", "none/such"]) == 1
    assert "none/such cannot be written: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["entry_points.txt", "METADATA"])
def test_changed_declarations_are_named(name: str, site: TmpPlugins, capsys):
    """Even where the list of files leaves them out."""
    info = site.folder / "acme-2.5.dist-info"
    (info / "RECORD").write_text("acme_logger.py,,\n")
    main(["plugins", "lock"])
    with (info / name).open("a") as file:
        file.write("\n")
    assert "files of acme 2.5 have changed" in check(capsys)


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_distribution_without_a_list_of_files_is_refused(
    is_missing: bool, site: TmpPlugins, capsys
):
    main(["plugins", "lock"])
    record = site.folder / "acme-2.5.dist-info/RECORD"
    record.write_text("")
    if is_missing:
        record.unlink()
    assert "acme: its files cannot be verified" in check(capsys)
    assert main(["plugins", "lock"]) == 1
    assert "acme: its files cannot be verified" in capsys.readouterr().err


@pytest.mark.parametrize(("file", "is_locked"), [
    ("src/mine/code.py", True), ("src/mine/native.so", True), ("src/mine/native.pyd", True),
    ("src/mine/data/table.json", True), ("root.py", True), ("src/mine/__pycache__/code.pyc", False),
    ("tenonry.lock", False), (".venv/code.py", False), ("build/lib/code.py", False),
])  # fmt: skip
def test_code_and_data_of_an_editable_distribution(
    file: str, is_locked: bool, site: TmpPlugins, tmp_path: Path
):
    path = tmp_path / "source" / file
    path.parent.mkdir(parents=True)
    path.write_text("1")
    info = site.distribution("mine", entry_points=LOGGERS)
    origin = {"url": (tmp_path / "source").as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    before = content_hash(importlib.metadata.distribution("mine"))
    path.write_text("2")
    assert (content_hash(importlib.metadata.distribution("mine")) != before) == is_locked

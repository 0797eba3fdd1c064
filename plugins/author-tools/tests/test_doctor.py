"""`tenonry doctor` on environments that are good, broken, conflicting and outdated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenonry.cli import main
from tenonry_author_tools.environment import startup_files
from tenonry_author_tools.installation import first_party
from tenonry_testkit.plugins import TmpPlugins

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LOGGER = """
from tenonry.interfaces.stat_logger import StatLogger
class Mine(StatLogger):
    def record(self, record): pass
"""


@pytest.fixture
def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_outside_settings: None
) -> Iterator[TmpPlugins]:
    folder = tmp_path / "site"
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with TmpPlugins(folder, see_installed=True) as plugins:
        yield plugins


def install(site: TmpPlugins, source: str = LOGGER, **changes: Any) -> Path:
    given: dict[str, Any] = {
        "requires": ["tenonry>=0.1,<0.2"],
        "entry_points": {"tenonry.stat_loggers": {"acme": "acme_logger:Mine"}},
        "modules": {"acme_logger": source},
    }
    return site.distribution("acme", "2.5", **given | changes)


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    status = main(["doctor", "--json", *words])
    answer = json.loads(capsys.readouterr().out)
    levels = [finding["level"] for finding in answer["findings"]]
    assert status == ("error" in levels)
    return answer


def chosen(answer: dict[str, Any], kind: str) -> list[tuple[str, str]]:
    return [(each["name"], each["why"]) for each in answer["chosen"] if each["kind"] == kind]


def test_a_good_environment(site: TmpPlugins, capsys):
    install(site)
    answer = doctor(capsys)
    assert answer["findings"] == []
    assert answer["environment"]["tenonry"] == "0.1.0"
    assert chosen(answer, "scheduler") == [("batching", "default of scheduler")]


def test_choices_name_their_setting(site: TmpPlugins, tmp_path: Path, monkeypatch, capsys):
    install(site)
    monkeypatch.setenv("TENONRY_SCHEDULER", "static")
    file = tmp_path / "config.yaml"
    file.write_text("stat_loggers: [acme]\nscheduler: batching\n")
    answer = doctor(capsys, "--config", str(file))
    assert chosen(answer, "scheduler") == [("static", "TENONRY_SCHEDULER")]
    assert chosen(answer, "stat_logger") == [("acme", f"stat_loggers in {file}")]
    assert "TENONRY_SCHEDULER" in answer["environment"]["variables"]


def test_the_report_for_people(site: TmpPlugins, capsys):
    install(site, modules={"acme_logger": "import tensorflow\n" + LOGGER, "tensorflow": ""})
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "PL104 error: acme 2.5: " in text
    assert "acme_logger.py:2: " in text
    assert text.endswith(
        "plugins are not chosen while there are errors\n"
        + text.splitlines()[-2]
        + "\n1 errors, 0 warnings\n"
    )


@pytest.mark.parametrize(("source", "changes", "rule"), [
    (LOGGER, {"requires": ["tenonry<0.1"]}, "PL004"),
    (LOGGER, {"entry_points": {"tenonry.stat_loger": {"acme": "acme_logger:Mine"}}}, "PL002"),
    (LOGGER, {"entry_points": {"tenonry.points": {"acme": "acme_logger:Mine"}}}, "PL201"),
])  # fmt: skip
def test_bad_plugins_are_named(
    source: str, changes: dict[str, Any], rule: str, site: TmpPlugins, capsys
):
    install(site, source, **changes)
    answer = doctor(capsys, "--import-timeout", "60")
    found = [each for each in answer["findings"] if each["rule"] == rule]
    assert found, answer["findings"]
    assert found[0]["distribution"] == "acme 2.5"
    assert found[0]["remedy"]
    assert found[0]["file"]
    assert answer["chosen"] == []


def test_copies_of_a_plugin_are_listed(site: TmpPlugins, capsys):
    info = install(site)
    shutil.copytree(info, info.with_name("acme-3.0.dist-info"))
    metadata = info.with_name("acme-3.0.dist-info") / "METADATA"
    metadata.write_text(metadata.read_text().replace("2.5", "3.0"))
    site.forget_caches()
    (finding,) = doctor(capsys, "--import-timeout", "60")["findings"]
    assert (finding["rule"], finding["level"]) == ("PL007", "warning")
    assert "2.5 (" in finding["text"]
    assert "3.0 (" in finding["text"]


def test_an_outdated_distribution_of_this_project_is_named(site: TmpPlugins, capsys):
    site.distribution("tenonry-io-text", "0.0.9")
    rules = {each["rule"]: each for each in doctor(capsys)["findings"]}
    assert "it is 0.0.9" in rules["PL004"]["text"]
    assert rules["PL004"]["remedy"] == "pip install tenonry-io-text==0.1.0"
    assert "2 copies" in rules["PL007"]["text"]


@pytest.mark.parametrize(
    "text", ["scheduler: none-such", "stat_loggers: [none-such]", "max_num_seqs: -1"]
)
def test_a_start_that_is_refused_is_an_error(text: str, site: TmpPlugins, tmp_path: Path, capsys):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    (finding,) = doctor(capsys, "--config", str(file))["findings"]
    assert finding["rule"] == "PL008"
    assert finding["file"] == str(file)


SETTING = """
from tenonry.config import setting
from tenonry.interfaces.plugin import PluginSettings
from tenonry.interfaces.stat_logger import StatLogger

class Wanted(PluginSettings):
    sample_share: float = setting({value})

class Mine(StatLogger):
    Settings = Wanted
    def record(self, record): pass
"""


def test_conflicting_plugins_are_named(site: TmpPlugins, tmp_path: Path, capsys):
    """Each is good alone."""
    for name, value in (("acme", 0.1), ("brand", 0.2)):
        site.distribution(
            name,
            "2.5",
            requires=["tenonry>=0.1,<0.2"],
            entry_points={"tenonry.stat_loggers": {name: f"{name}_logger:Mine"}},
            modules={f"{name}_logger": SETTING.format(value=value)},
        )
    file = tmp_path / "config.yaml"
    file.write_text("stat_loggers: [acme]")
    assert doctor(capsys, "--config", str(file))["findings"] == []
    file.write_text("stat_loggers: [acme, brand]")
    (finding,) = doctor(capsys, "--config", str(file))["findings"]
    assert finding["rule"] == "PL008"
    for text in ("acme_logger:Mine, acme 2.5", "brand 2.5", "'sample_share'", "choose another"):
        assert text in finding["text"]


def test_startup_files(tmp_path: Path, monkeypatch):
    (tmp_path / "acme.pth").write_text("/a/folder\nimport acme_start\n")
    (tmp_path / "sitecustomize.py").write_text("")
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.setattr("site.getusersitepackages", lambda: str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [(Path(each.file).name, each.line, each.text) for each in startup_files()] == [
        ("acme.pth", 2, "import acme_start"), ("sitecustomize.py", 1, "the module sitecustomize"),
    ]  # fmt: skip


def test_every_distribution_of_the_tree_is_first_party():
    """`doctor` imports those of others only."""
    root = Path(__file__).resolve().parents[3]
    folders = [*root.glob("core"), *root.glob("[!.]*/*")]
    import tomllib

    names = {
        tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]["name"]
        for folder in folders
        if (folder / "pyproject.toml").is_file()
    }
    assert names <= first_party()

"""`tenonry plugins check`: each bad plugin is named with distribution, file, line and remedy; a good one is graded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tenonry.cli import main
from tenonry_author_tools.badge import message
from tenonry_commands.deprecations import deprecations
from tenonry_testkit.plugins import TmpPlugins

pytestmark = [pytest.mark.integration, pytest.mark.slow]

GOOD = """
from tenonry.interfaces.stat_logger import StatLogger
class Mine(StatLogger):
    def record(self, record): pass
"""
BOUNDED = ("tenonry>=0.1,<0.2",)
# name → source, or further files; rule; text; line of the module, which has one line more at its top.
BAD_MODULES: dict[str, tuple[str, str, str, int]] = {
    "raises": ("x = 1\nraise OSError('no such chip')\n", "PL101", "no such chip", 3),
    "syntax": ("x = (\n", "PL101", "SyntaxError", 2),
    "missing": ("import none_such\n", "PL101", "none_such", 2),
    "hangs": ("import threading\nthreading.Event().wait()\n", "PL102", "within 2 s", 3),
    "exits": ("raise SystemExit(3)\n", "PL103", "ends the process", 2),
    "kills": ("import os\nos._exit(3)\n", "PL103", "os._exit(3)", 3),
    "torch": ("import logging\nimport torch\n" + GOOD, "PL104", "imports torch", 3),
    "prints": ("print('hello')\n" + GOOD, "PL105", "hello", 2),
    "thread": (
        "import threading\nthreading.Thread(target=threading.Event().wait, name='lost', daemon=True).start()\n" + GOOD,
        "PL106", "'lost'", 3,
    ),
    "abstract": (GOOD.replace("record(", "other("), "PL201", "does not implement record", 4),
    "signature": (GOOD.replace("self, record", "self"), "PL201", "write: def record", 4),
    "no class": ("Mine = 3\n", "PL201", "not a subclass", 0),
    "future": (GOOD.replace("    def", "    interface_version = 9\n    def"), "PL201", "version 9", 4),
    "setting": (
        "from tenonry.config import setting\nfrom tenonry.interfaces.plugin import PluginSettings\n"
        "class Wanted(PluginSettings):\n    max_num_seqs: int = setting(1)\n"
        + GOOD + "    Settings = Wanted\n",
        "PL203", "--max-num-seqs", 8,
    ),
}  # fmt: skip


@pytest.fixture
def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_outside_settings: None
) -> Iterator[TmpPlugins]:
    folder = tmp_path / "site"
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with TmpPlugins(folder, see_installed=True) as plugins:
        yield plugins


def install(site: TmpPlugins, source: str = GOOD, **changes: Any) -> Path:
    """Install the distribution `acme`; returns the folder of its metadata."""
    given: dict[str, Any] = {
        "requires": BOUNDED,
        "entry_points": {"tenonry.stat_loggers": {"acme": "acme_logger:Mine"}},
        "modules": {"acme_logger": source},
    }
    return site.distribution("acme", "2.5", **given | changes)


def check(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    status = main(["plugins", "check", *words, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert status == (answer["grade"] == "F")
    return answer


@pytest.mark.parametrize("name", BAD_MODULES)
def test_a_bad_module_is_named_with_its_line(name: str, site: TmpPlugins, capsys):
    source, rule, text, line = BAD_MODULES[name]
    install(site, source)
    answer = check(
        capsys, "acme", "--no-suite", "--import-timeout", "2" if rule == "PL102" else "60"
    )
    assert answer["grade"] == "F"
    (finding,) = answer["findings"]
    assert (finding["rule"], finding["distribution"]) == (rule, "acme 2.5")
    assert text in finding["text"]
    assert finding["remedy"]
    if line:
        assert (Path(finding["file"]).name, finding["line"]) == ("acme_logger.py", line)


@pytest.mark.parametrize(("changes", "rule", "text"), [
    ({"requires": ["tenonry>=99"]}, "PL004", "needs 'tenonry>=99'"),
    ({"requires": ["tenonry<0.1"]}, "PL004", "needs 'tenonry<0.1'"),
    ({"requires": ["tenonry"]}, "PL003", "no upper bound"),
    ({"requires": []}, "PL003", "does not require tenonry"),
    ({"entry_points": {}}, "PL002", "names no plugin"),
    ({"entry_points": {"tenonry.stat_loger": {"acme": "acme_logger:Mine"}}}, "PL002", "'tenonry.stat_loger'"),
    ({"entry_points": {"tenory.stat_loggers": {"acme": "acme_logger:Mine"}}}, "PL002", "'tenory.stat_loggers'"),
    ({"entry_points": {"tenonry.stat_loggers": {"acme": "acme_logger"}}}, "PL002", "without a class"),
    ({"entry_points": {"tenonry.stat_loggers": {"acme": "acme_logger:Yours"}}}, "PL101", "defines ['Mine']"),
    ({"entry_points": {"tenonry.stat_loggers": {"acme": "acme_loger:Mine"}}}, "PL101", "acme_loger"),
    (
        {"entry_points": {"tenonry.stat_loggers": {"console": "acme_logger:Mine"}}},
        "PL006", "tenonry-stat-logger-console",
    ),
])  # fmt: skip
def test_bad_metadata_are_named(
    changes: dict[str, Any], rule: str, text: str, site: TmpPlugins, capsys
):
    info = install(site, **changes)
    answer = check(capsys, "acme", "--no-suite")
    finding = next(each for each in answer["findings"] if each["rule"] == rule)
    assert text in finding["text"]
    assert finding["remedy"]
    is_declared = rule in {"PL002", "PL006", "PL101"} and changes["entry_points"]
    assert Path(finding["file"]) == info / ("entry_points.txt" if is_declared else "METADATA")
    assert finding["line"] > 0 or changes.get("requires")
    assert answer["grade"] == "F"


@pytest.mark.parametrize(("source", "text", "line"), [
    ("@hookimpl\ndef tenonry_get_schedulr(name): pass\n", "did you mean 'tenonry_get_scheduler'?", 3),
    ("@hookimpl\ndef tenonry_configured(conf): pass\n", "the argument 'conf' of tenonry_configured", 3),
    ("def tenonry_configured(config): pass\n", "its function tenonry_configured lacks @hookimpl", 3),
    ("", "implements no hook", 0),
])  # fmt: skip
def test_a_bad_hook_is_named_with_its_line(
    source: str, text: str, line: int, site: TmpPlugins, capsys
):
    points = {"tenonry.plugins": {"acme": "acme_hooks"}}
    module = "from tenonry.plugin.hookspecs import hookimpl\n" + source
    site.distribution(
        "acme", "2.5", requires=BOUNDED, entry_points=points, modules={"acme_hooks": module}
    )
    (finding,) = check(capsys, "acme", "--no-suite")["findings"]
    assert finding["rule"] == "PL201"
    assert text in finding["text"]
    assert (Path(finding["file"]).name, finding["line"]) == ("acme_hooks.py", line)


def test_the_hooks_of_an_object_are_found(site: TmpPlugins, capsys):
    points = {"tenonry.plugins": {"acme": "acme_hooks:hooks"}}
    source = """
        from tenonry.plugin.hookspecs import hookimpl

        class Hooks:
            @hookimpl
            def tenonry_configured(self, config): pass

        hooks = Hooks()
        """
    site.distribution(
        "acme", "2.5", requires=BOUNDED, entry_points=points, modules={"acme_hooks": source}
    )
    assert check(capsys, "acme", "--no-suite")["findings"] == []


def test_a_version_that_is_not_supported_is_not_called_old(site: TmpPlugins, capsys):
    install(site, GOOD.replace("    def", "    interface_version = 0\n    def"))
    (finding,) = check(capsys, "acme", "--no-suite")["findings"]
    assert finding["rule"] == "PL201"
    assert finding["text"].count("acme_logger.py") == 0  # the finding has the place


def test_an_installer_may_spell_the_metadata_folder_in_its_own_way(site: TmpPlugins, capsys):
    points = {"tenonry.stat_loggers": {"acme": "acme_logger:Mine"}}
    info = site.distribution(
        "Acme.Logger", "2.5", requires=BOUNDED, entry_points=points, modules={"acme_logger": GOOD}
    )
    info.rename(info.with_name("acme_logger-2.5.dist-info"))
    site.forget_caches()
    assert check(capsys, "Acme.Logger", "--no-suite")["findings"] == []


def test_a_message_of_several_lines_is_one_line(site: TmpPlugins, capsys):
    install(site, "raise OSError('no\\nchip')\n")
    assert main(["plugins", "check", "acme", "--no-suite"]) == 1
    assert "acme_logger.py:2); fix the module; `python -c 'import acme_logger'`" in (
        capsys.readouterr().out
    )


def test_an_entry_point_of_settings_is_known(site: TmpPlugins, capsys):
    install(
        site,
        entry_points={
            "tenonry.stat_loggers": {"acme": "acme_logger:Mine"},
            "tenonry.settings": {"stat_logger.acme": "acme_logger:Mine"},
        },
    )
    assert check(capsys, "acme", "--no-suite")["findings"] == []


def test_a_pth_file_is_named(site: TmpPlugins, capsys):
    info = install(site)
    (site.folder / "acme.pth").write_text("import acme_logger\n")
    (site.folder / "_editable_impl_acme.pth").write_text("/somewhere\n")  # of an installer
    (info / "RECORD").write_text("acme.pth,,\n_editable_impl_acme.pth,,\n")
    (finding,) = check(capsys, "acme", "--no-suite")["findings"]
    assert (finding["rule"], finding["file"]) == ("PL005", str(site.folder / "acme.pth"))


@pytest.mark.parametrize(("version", "rule"), [(3, None), (2, "PL202"), (1, "PL201")])
def test_versions_of_an_interface(version: int, rule: str | None, site: TmpPlugins, capsys):
    site.distribution(
        "opener",
        entry_points={"tenonry.points": {"sampler": "opener:POINT"}},
        modules={"opener": """
            from tenonry.plugin import Point
            class Sampler: interface_version = 3
            POINT = Point("opener.samplers", Sampler)
            """},
    )  # fmt: skip
    source = f"from opener import Sampler\nclass Mine(Sampler): interface_version = {version}\n"
    install(site, source, entry_points={"opener.samplers": {"acme": "acme_logger:Mine"}})
    answer = check(capsys, "acme", "--no-suite")
    assert [each["rule"] for each in answer["findings"]] == ([rule] if rule else [])
    assert (
        answer["grade"] == {None: "C", "PL202": "B", "PL201": "F"}[rule] if rule != "PL202" else "C"
    )


def test_a_quiet_thread_that_ended_and_a_method_that_imports_are_fine(site: TmpPlugins, capsys):
    source = f"""
import threading
thread = threading.Thread(target=int)
thread.start()
thread.join()
{GOOD}
    def log(self):
        import torch
"""
    install(site, source)
    assert check(capsys, "acme", "--no-suite") == {
        "distribution": "acme 2.5", "plugins": ["stat_logger/acme"],
        "tiers": {"stat_logger/acme": "beta"}, "lacks": [], "grade": "C", "findings": [],
    }  # fmt: skip


DEPRECATED = """
from typing_extensions import deprecated
from tenonry.interfaces.stat_logger import StatLogger

class Base(StatLogger):
    @deprecated("override record instead")
    def old_record(self, record): pass

@deprecated("use new_helper of tenonry_next")
def old_helper(): pass
"""
USES_DEPRECATED = """from tenonry_next import Base
from tenonry_next import old_helper

class Mine(Base):
    def record(self, record): pass
    def old_record(self, record): pass
"""


def test_deprecated_names_are_reported_with_plugin_and_distribution(site: TmpPlugins, capsys):
    site.module("tenonry_next", DEPRECATED)
    install(site, USES_DEPRECATED)
    answer = check(capsys, "acme", "--no-suite")
    assert answer["grade"] == "C"
    (finding,) = answer["findings"]
    assert (finding["rule"], finding["level"], finding["distribution"]) == (
        "PL204",
        "warning",
        "acme 2.5",
    )
    text = "stat logger 'acme' uses the deprecated tenonry_next.old_helper: use new_helper of tenonry_next"
    assert finding["text"] == text
    assert finding["line"] == 3


def deprecated(reason: str) -> Any:
    """Mark a function as `warnings.deprecated` does, which Python 3.11 lacks."""

    def mark(function: Any) -> Any:
        function.__deprecated__ = reason
        return function

    return mark


class Old:
    @deprecated("override record instead")
    def old_record(self) -> None: ...


class Overriding(Old):
    def old_record(self) -> None: ...


def test_deprecated_members_that_are_overridden_are_reported():
    ((text, file, _),) = [each for each in deprecations(Overriding, Old) if "member" in each[0]]
    assert text == "the deprecated member Old.old_record: override record instead"
    assert file == __file__


@pytest.mark.parametrize("suffix", ["svg", "json"])
def test_a_badge_names_version_and_grade(suffix: str, site: TmpPlugins, tmp_path: Path, capsys):
    install(site, GOOD.replace("    def", "    interface_version = 1\n    def"))
    file = tmp_path / f"badge.{suffix}"
    check(capsys, "acme", "--no-suite", "--badge", str(file))
    text = file.read_text("utf-8")
    assert "stat logger 1 (N): C" in text
    if suffix == "json":
        assert json.loads(text)["schemaVersion"] == 1
    else:
        assert ET.fromstring(text).get("height") == "20"


def test_a_badge_of_another_format_is_refused(site: TmpPlugins, capsys):
    install(site)
    assert main(["plugins", "check", "acme", "--no-suite", "--badge", "badge.png"]) == 1
    assert "ends in .svg or .json" in capsys.readouterr().err


@pytest.mark.parametrize(("current", "text"), [
    (1, "stat logger 1 (N): A"), (2, "stat logger 1 (N\N{MINUS SIGN}1): A"), (3, "stat logger 1 (unsupported): A"),
])  # fmt: skip
def test_a_badge_names_the_place_of_the_version(current: int, text: str):
    assert message({"stat_logger": (1, current)}, "A") == text


class TestSuites:
    @pytest.mark.nightly
    def test_the_suite_of_the_kind_is_run_without_tests(self, site: TmpPlugins, capsys):
        install(site)
        assert check(capsys, "stat_logger/acme")["grade"] == "A"

    def test_a_failure_names_the_test(self, site: TmpPlugins, capsys):
        install(site, GOOD.replace("pass", "1 / len(record.iteration.finished)"))
        (finding, *_) = check(capsys, "acme")["findings"]
        assert finding["rule"] == "PL302"
        assert re.search("test_.*fails", finding["text"])

    def test_tests_that_were_cut_off_fail(self, site: TmpPlugins, capsys):
        install(site, GOOD.replace("pass", "__import__('os')._exit(0)"))
        (finding,) = check(capsys, "acme")["findings"]
        assert finding["rule"] == "PL302"
        assert "exited with status 0 before the tests were finished" in finding["text"]

    def test_a_folder_is_checked_with_its_own_tests(self, tmp_path: Path, monkeypatch, capsys):
        """It need not be installed."""
        monkeypatch.chdir(tmp_path)
        assert main(["plugins", "new", "point", "mine"]) == 0
        capsys.readouterr()
        assert main(["plugins", "check", "./mine"]) == 0
        assert capsys.readouterr().out.endswith("grade A: no findings, tests included\n")
        file = tmp_path / "mine/tests/test_plugin.py"
        file.write_text("def test_it():\n    assert 1 == 2\n")
        assert main(["plugins", "check", "mine"]) == 1
        assert "PL302 error: mine 0.1.0" in capsys.readouterr().out

    def test_declared_lacks_are_shown(self, tmp_path: Path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        assert main(["plugins", "new", "worker", "mine"]) == 0
        (tmp_path / "mine/tests/test_plugin.py").write_text(
            "from tenonry_testkit.worker import WorkerContract\n\n\n"
            "class TestMine(WorkerContract):\n"
            '    worker = "mine.plugin:Mine"\n'
            "    supports_logprobs = False\n"
        )
        capsys.readouterr()
        monkeypatch.setenv("PYTEST_ADDOPTS", "-k 'logprobs_have or start_reports'")
        assert main(["plugins", "check", "./mine"]) == 0
        assert "\nlacks, as declared: supports_logprobs\ngrade A" in capsys.readouterr().out

    def test_tests_that_are_all_skipped_are_no_proof(self, tmp_path: Path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        assert main(["plugins", "new", "point", "mine"]) == 0
        file = tmp_path / "mine/tests/test_plugin.py"
        skipped = "import pytest\n\n\n@pytest.mark.skip('no GPU')\ndef test_it():\n    pass\n"
        file.write_text(skipped)
        capsys.readouterr()
        (finding,) = check(capsys, "./mine")["findings"]
        assert finding["rule"] == "PL304"
        assert finding["text"] == "no test ran, all 1 were skipped: no GPU"
        file.write_text(skipped + "\n\ndef test_other():\n    pass\n")
        assert check(capsys, "./mine")["findings"] == []

    def test_no_tests_is_a_warning(self, site: TmpPlugins, capsys):
        point = {"tenonry.points": {"acme": "acme_logger:THINGS"}}
        source = 'from tenonry.plugin import Point\n\nTHINGS = Point("acme.things")\n'
        install(site, source, entry_points=point)
        answer = check(capsys, "acme")
        assert (answer["grade"], answer["findings"][0]["rule"]) == ("B", "PL301")


@pytest.mark.parametrize(("target", "text"), [
    ("none-such", "no installed plugin"), ("./none", "pyproject.toml"), ("scheduler/none", "no installed plugin"),
])  # fmt: skip
def test_unknown_targets_are_refused(target: str, text: str, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "check", target]) == 1
    assert text in capsys.readouterr().err


def test_a_name_of_several_distributions_needs_its_kind(site: TmpPlugins, capsys):
    install(site)
    site.distribution("other", entry_points={"tenonry.schedulers": {"acme": "acme_logger:Mine"}})
    site.distribution("third", entry_points={"tenonry.workers": {"both": "a:b"}})
    site.distribution("fourth", entry_points={"tenonry.schedulers": {"both": "a:b"}})
    assert main(["plugins", "check", "both"]) == 1
    assert "fourth, third" in capsys.readouterr().err

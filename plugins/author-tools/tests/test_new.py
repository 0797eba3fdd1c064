"""`tenonry plugins new`: refusals, and packages that are installed, listed and pass their tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from author_tools_packages import NewPackages, check, install, name_of

from tenonry.cli import main
from tenonry_author_tools.scaffold import kinds
from tenonry_testkit.tiers import nightly_unless

# Their tests load torch and take from ten seconds to minutes.
SLOW = {
    "attention_backend",
    "buffers",
    "logits_processor",
    "model_pass",
    "quantisation",
    "runner_feature",
    "step_kernels",
}
# Their suites take a minute even with a tenth of the examples.
LONG = {"scheduler", "scheduling_policy"}
GRADE_A = "\ngrade A: no findings, tests included\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_outside_settings: None) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("words", "texts"), [
    (["schedular", "mine"], ["did you mean 'scheduler'", "stat_logger"]),
    (["scheduler", "batching"], ["'batching' is taken", "tenonry-scheduler-batching"]),
    (["scheduler", "json"], ["module json belongs to Python"]),
    (["scheduler", "pytest"], ["module pytest belongs to pytest"]),
    (["scheduler", "Mine"], ["'Mine'", "lower-case"]),
])  # fmt: skip
def test_refusals_name_the_remedy(words: list[str], texts: list[str], capsys, tmp_path: Path):
    assert main(["plugins", "new", *words]) == 1
    error = capsys.readouterr().err
    assert all(text in error for text in texts), error
    assert not list(tmp_path.iterdir())


def test_a_package_is_written_below_the_name(tmp_path: Path, capsys):
    assert main(["plugins", "new", "call-set", "mine"]) == 0
    assert (tmp_path / "mine/src/mine/plugin.py").is_file()
    assert "plugins check ./mine" in capsys.readouterr().out


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_from_an_empty_folder_to_a_grade(tmp_path: Path):
    """The way of an author, for one kind; all of them are nightly."""
    source, site = tmp_path / "mine", tmp_path / "site"
    assert main(["plugins", "new", "request_check", "mine"]) == 0
    install([source], site)
    output = check(source, {"PYTHONPATH": str(site), "TENONRY_TESTKIT_EFFORT": "0.1"})
    assert output.endswith(GRADE_A), output


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(300)
class TestInstalled:
    def test_every_plugin_is_listed(self, new_packages: NewPackages):
        command = [sys.executable, "-m", "tenonry", "plugins", "list", "--json"]
        done = subprocess.run(
            command, env=new_packages.environment, capture_output=True, encoding="utf-8", check=True
        )
        states = {(row["kind"], row["name"]): row["state"] for row in json.loads(done.stdout)}
        for kind in kinds():
            wanted = "active" if kind == "hook_module" else "available"
            assert states[kind, name_of(kind)] == wanted

    def test_their_tests_pass(self, new_packages: NewPackages):
        self.run_tests(new_packages, set(kinds()) - SLOW - LONG)

    @pytest.mark.parametrize("kind", nightly_unless(lambda kind: kind not in SLOW, kinds()))
    def test_nothing_is_found(self, new_packages: NewPackages, kind: str, monkeypatch, capsys):
        """Metadata, import and interface."""
        monkeypatch.setenv("PYTHONPATH", new_packages.environment["PYTHONPATH"])
        assert main(["plugins", "check", str(new_packages.sources[kind]), "--no-suite"]) == 0
        assert "\ngrade C: no errors; tests were not run\n" in capsys.readouterr().out

    @pytest.mark.nightly
    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("kind", kinds())
    def test_the_grade_is_a(self, new_packages: NewPackages, kind: str):
        output = check(new_packages.sources[kind], new_packages.environment)
        assert output.endswith(GRADE_A), output

    def run_tests(self, new_packages: NewPackages, chosen: set[str]) -> None:
        folders = [new_packages.sources[kind] / "tests" for kind in sorted(chosen)]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "none.ini"]
        Path("none.ini").write_text("[pytest]\n")
        done = subprocess.run(
            [*command, "--import-mode=importlib", *folders],
            env=new_packages.environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]

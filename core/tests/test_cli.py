"""The command line: help without imports, one line per error, exit statuses 0, 1, 2 and 130."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import tenonry
from tenonry.cli import VerbParser, main, make_parser
from tenonry.errors import PluginIncompatible
from tenonry.interfaces.command import Command
from tenonry_testkit.kernel.site import Site

COMMANDS = '''
import argparse, sys, time
from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command

class Act(Command):
    """Does what its argument says."""
    summary = "Does what its argument says."
    def add_arguments(self, parser):
        parser.add_argument("what")
        parser.add_argument("--number", type=int, default=0)
    def run(self, args):
        if args.what == "fail":
            raise ConfigError("a setting\\nis wrong")
        if args.what == "interrupt":
            raise KeyboardInterrupt
        if args.what == "bug":
            raise ZeroDivisionError("a bug")
        if args.what == "open":
            open("/no")
        if args.what == "wait":
            print("waiting", flush=True)
            time.sleep(60)
        if args.what == "write":
            sys.stdout.write("x" * 100_000)
        return args.number

class Stranger:
    pass
'''


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    root = logging.getLogger("tenonry")
    before = root.handlers[:], root.level, root.propagate
    yield
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


@pytest.fixture
def acts(site: Site) -> Site:
    site.install(
        "acts",
        version="2.0",
        summary="Acts on words.",
        entry_points={
            "tenonry.commands": {
                "act": "acts_commands:Act",
                "strange": "acts_commands:Stranger",
                "gone": "no_such:X",
            }
        },
        modules={"acts_commands.py": COMMANDS},
    )
    return site


def sh(*command: str, site: Site) -> subprocess.CompletedProcess[str]:
    """Run a command with the distributions installed in `site`."""
    environment = {**os.environ, "PYTHONPATH": str(site.folder)}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=25, check=False
    )


class TestHelp:
    @pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"], ["help"]])
    def test_lists_every_verb_with_its_summary(self, acts, capsys, arguments):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert "usage: tenonry" in out
        assert "act          Does what its argument says. (acts 2.0)" in out
        assert "gone          (acts 2.0)" in out
        assert "strange       (acts 2.0)" in out
        assert "acts_commands" not in sys.modules

    @pytest.mark.parametrize("word", ["-V", "--version"])
    def test_version(self, capsys, word):
        assert main([word]) == 0
        assert capsys.readouterr().out == f"tenonry {tenonry.__version__}\n"

    def test_lists_a_verb_without_a_module(self, site, capsys):
        site.install("quiet", entry_points={"tenonry.commands": {"hush": "quiet:Q"}})
        assert main(["--help"]) == 0
        assert "hush          (quiet 1.0)" in capsys.readouterr().out

    @pytest.mark.parametrize(("body", "summary"), [
        ("    summary = (\n        'On two '\n        'lines.'\n    )\n", "On two lines."),
        ("    summary: ClassVar[str] = 'Typed.'\n", "Typed."),
        ("    summary_width = 8\n    summary = 'Behind another.'\n", "Behind another."),
        ("    pass\nclass Other:\n    summary = 'Of another class.'\n", ""),
        ("    summary = 'a' + text\n", ""),
        ("    summary = (\n", ""),
    ])  # fmt: skip
    def test_reads_a_summary_from_source(self, site, capsys, body: str, summary: str):
        site.install(
            "quiet",
            entry_points={"tenonry.commands": {"hush": "quiet.verbs:Hush"}},
            modules={
                "quiet/__init__.py": "1 / 0",
                "quiet/verbs.py": "class Hush(\n    Command\n):\n" + body,
            },
        )
        assert main(["--help"]) == 0
        assert f"hush         {summary} (quiet 1.0)" in capsys.readouterr().out

    def test_of_a_verb(self, acts, capsys):
        with pytest.raises(SystemExit) as caught:
            main(["act", "--help"])
        assert caught.value.code == 0
        assert "Does what its argument says." in capsys.readouterr().out

    @pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
    @pytest.mark.integration
    def test_nothing_heavy_and_no_plugin_is_imported(self, acts, arguments):
        """Help comes from metadata and source text."""
        code = (
            "import sys; from tenonry.cli import main; status = main(sys.argv[1:])\n"
            "bad = [name for name in sys.modules if name.startswith(('tenonry_', 'acts_')) "
            "or name in {'torch', 'transformers', 'fastapi', 'uvicorn', 'zmq'}]\n"
            "assert not bad, bad\n"
            "sys.exit(status)"
        )
        environment = {**os.environ, "PYTHONPATH": str(acts.folder)}
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.integration
class TestGarbage:
    """Objects of the verb's imports live until the process ends."""

    CODE = """
import gc, sys
from tenonry.cli import main
sys.argv = ["tenonry", *sys.argv[1:]]
main(%s)
print(gc.isenabled(), gc.get_freeze_count() > 1000)
"""

    def test_a_process_of_ours_freezes_it(self, acts):
        done = sh(sys.executable, "-c", self.CODE % "", "act", "ok", site=acts)
        assert done.stdout.splitlines()[-1] == "True True", done.stderr

    def test_the_process_of_another_program_does_not(self, acts):
        done = sh(sys.executable, "-c", self.CODE % "['act', 'ok']", site=acts)
        assert done.stdout.splitlines()[-1] == "True False", done.stderr


class TestStatus:
    def test_is_the_verbs_own(self, acts):
        assert main(["act", "ok"]) == 0
        assert main(["act", "ok", "--number", "7"]) == 7

    def test_one_and_one_line_for_an_error_of_ours(self, acts, capsys):
        assert main(["act", "fail"]) == 1
        assert capsys.readouterr().err == "tenonry: error: a setting is wrong\n"

    def test_two_for_an_unknown_verb_with_the_nearest(self, acts, capsys):
        assert main(["acct"]) == 2
        err = capsys.readouterr().err
        assert err.startswith("usage: tenonry")
        assert "tenonry: error: no command is called 'acct'; installed: " in err
        assert "act (acts 2.0)" in err
        assert "did you mean 'act'?" in err

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (["ok", "--numbr", "7"], "unrecognized arguments: --numbr 7; did you mean --number?"),
            (["ok", "--numb=7"], "unrecognized arguments: --numb=7; did you mean --number?"),
            (["ok", "--qqq"], "unrecognized arguments: --qqq;"),
            (["ok", "--number", "x"], "argument --number: invalid int value: 'x';"),
            ([], "the following arguments are required: what;"),
        ],
    )
    def test_two_for_wrong_words_with_the_nearest_flag(self, acts, capsys, arguments, line):
        with pytest.raises(SystemExit) as caught:
            main(["act", *arguments])
        assert caught.value.code == 2
        assert (
            capsys.readouterr().err
            == f"tenonry act: error: {line} `tenonry act --help` lists what there is\n"
        )

    def test_flags_of_a_verb_below_are_known(self, capsys):
        parser = VerbParser("tenonry bench")
        parser.add_argument("--signal", choices={"KILL": 9, "STOP": 19})
        parser.add_subparsers().add_parser("engine").add_argument("--streams")
        with pytest.raises(SystemExit):
            parser.parse_args(["engine", "--stream", "4"])
        assert "did you mean --streams?" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("verb", "package"),
        [
            *(
                (verb, "tenonry-commands")
                for verb in ("generate", "chat", "ps", "keys", "completion")
            ),
            ("models", "tenonry-models"),
            ("serve", "tenonry-openai-server"),
            ("bench", "tenonry-bench"),
        ],
    )
    def test_two_for_an_unknown_verb_with_its_package(self, capsys, monkeypatch, verb, package):
        monkeypatch.setattr("tenonry.plugin.discovery.installed", lambda group: [])
        assert main([verb]) == 2
        assert f"pip install {package}\n" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--nonsense"],
            ["act"],
            ["act", "ok", "--nonsense"],
            ["act", "ok", "--number", "x"],
            ["act", "ok", "--num", "1"],
        ],
    )
    def test_two_for_wrong_usage(self, acts, arguments):
        try:
            status: Any = main(arguments)
        except SystemExit as exit_:
            status = exit_.code
        assert status == 2

    def test_130_for_an_interrupt(self, acts):
        assert main(["act", "interrupt"]) == 130

    @pytest.mark.integration
    def test_130_for_a_real_one_without_a_traceback(self, acts):
        environment = {**os.environ, "PYTHONPATH": str(acts.folder)}
        command = [sys.executable, "-m", "tenonry", "act", "wait"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=25)
        assert process.returncode == 130
        assert err == ""

    @pytest.mark.parametrize(("what", "error"), [
        ("bug", "ZeroDivisionError: a bug"), ("open", "FileNotFoundError: [Errno 2] No such file or directory: '/no'"),
    ])  # fmt: skip
    def test_a_bug_is_one_line_with_its_place(self, acts, capsys, monkeypatch, what, error):
        line = 1 + COMMANDS[: COMMANDS.index(f'"{what}"')].count("\n") + 1
        place = f"{acts.folder}/acts_commands.py:{line}"
        text = f"tenonry: error: plugin act (acts 2.0) failed in its command: {error} ({place})\n"
        assert main(["act", what]) == 1
        assert capsys.readouterr().err == text
        monkeypatch.setenv("TENONRY_LOG_LEVEL", "debug")
        assert main(["act", what]) == 1
        assert "Traceback (most recent call last)" in capsys.readouterr().err

    @pytest.mark.parametrize("what", ["write", "ok"])
    @pytest.mark.integration
    def test_a_reader_that_has_left_is_no_traceback(self, acts, what):
        script = f"{sys.executable} -m tenonry act {what}; echo status $? >&2"
        environment = {**os.environ, "PYTHONPATH": str(acts.folder)}
        done = subprocess.run(
            ["sh", "-c", f"({script}) | true"],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.stderr in {"status 0\n", "status 1\n"}

    @pytest.mark.integration
    def test_python_dash_m(self, acts):
        done = sh(sys.executable, "-m", "tenonry", "act", "fail", site=acts)
        assert done.returncode == 1
        assert done.stderr == "tenonry: error: a setting is wrong\n"


class TestBrokenVerbs:
    def test_a_class_that_is_no_command_is_named(self, acts):
        with pytest.raises(
            PluginIncompatible,
            match=r"command 'strange' \(acts_commands:Stranger, acts 2\.0\) is not a subclass",
        ):
            make_parser("strange")

    def test_a_module_that_is_gone_is_named(self, acts, capsys):
        assert main(["gone"]) == 1
        assert "command 'gone' (no_such:X, acts 2.0) cannot be imported" in capsys.readouterr().err

    def test_one_for_another_kernel_is_refused(self, site, capsys):
        site.install(
            "old",
            requires=["tenonry<0.1"],
            entry_points={"tenonry.commands": {"old": "old_command:X"}},
        )
        assert main(["old"]) == 1
        assert "old 1.0 needs tenonry<0.1" in capsys.readouterr().err

    def test_parsers_take_no_abbreviations(self, acts):
        parser, command = make_parser("act")
        assert isinstance(command, Command)
        assert not parser.allow_abbrev

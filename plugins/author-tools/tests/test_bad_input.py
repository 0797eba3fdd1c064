"""Each kind of bad plugin, from `check`, `doctor` and a start: named with distribution, file, line and remedy."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tenonry.cli import main, make_parser
from tenonry.errors import PluginError
from tenonry_author_tools import imported
from tenonry_author_tools.start_flags import CheckedFlag
from tenonry_testkit.plugins import TmpPlugins

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LOGGER = """
from tenonry.interfaces.stat_logger import StatLogger
class Mine(StatLogger):
    def record(self, record): pass
"""
OPENER = """
from tenonry.plugin import Point
class Sampler: interface_version = 3
POINT = Point("opener.samplers", Sampler)
"""
SETTINGS = """
from tenonry.config import setting
from tenonry.interfaces.plugin import PluginSettings
class Wanted(PluginSettings):
    max_num_seqs: int = setting(1)
"""
LIMITS_S = {
    "hangs": 2.0,
    "others": 60.0,
}  # of an import; those that hang are installed by themselves
HANGING = {"hangs", "point-hangs"}


class Bad(NamedTuple):
    """`source`: of the module, which has one line more at its top. `line`: of the fault there; 0: in the metadata."""

    rule: str
    text: str
    source: str = LOGGER
    line: int = 0
    requires: str = "tenonry>=0.1,<0.2"
    group: str = "tenonry.stat_loggers"
    name: str = ""
    is_error: bool = True


BAD = {
    "hangs": Bad("PL102", "did not finish", "import threading\nthreading.Event().wait()\n", 3),
    "exits": Bad("PL103", "ends the process", "raise SystemExit(3)\n", 2),
    "heavy": Bad("PL104", "imports tensorflow", "import tensorflow\n" + LOGGER, 2),
    "prints": Bad("PL105", "hello", "print('hello')\n" + LOGGER, 2),
    "thread": Bad(
        "PL106", "leaves the thread",
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n" + LOGGER, 3,
    ),
    "pth": Bad("PL005", "whenever any Python"),
    "name": Bad("PL006", "also a name of", name="console"),
    "flag": Bad("PL203", "--max-num-seqs", SETTINGS + LOGGER + "    Settings = Wanted\n", 9),
    "alias": Bad(
        "PL203", "--max-num-seqs",
        SETTINGS.replace("max_num_seqs: int = setting(1", "most_rows: int = setting(1, flag='--max-num-seqs'") + LOGGER
        + "    Settings = Wanted\n", 9,
    ),
    "newer": Bad("PL004", "tenonry>=99", requires="tenonry>=99,<100"),
    "previous": Bad(
        "PL202", "of version 2", "from opener import Sampler\nclass Mine(Sampler): interface_version = 2\n", 3,
        group="opener.samplers", is_error=False,
    ),
    "oldest": Bad(
        "PL201", "speaks version 1", "from opener import Sampler\nclass Mine(Sampler): interface_version = 1\n", 3,
        group="opener.samplers",
    ),
    "point-hangs": Bad(
        "PL102", "did not finish", "import threading\nthreading.Event().wait()\n", 3, group="tenonry.points",
    ),
    "point-exits": Bad("PL103", "os._exit(0)", "import os\nos._exit(0)\n", 3, group="tenonry.points"),
    "point-other": Bad("PL201", "is not a tenonry.plugin.Point", "Mine = 3\n", group="tenonry.points"),
}  # fmt: skip


def install(site: TmpPlugins, kind: str, bad: Bad) -> None:
    """Install the distribution `bad-KIND`."""
    module = module_of(kind)
    info = site.distribution(
        f"bad-{kind}",
        "2.5",
        requires=[bad.requires],
        entry_points={bad.group: {bad.name or f"bad-{kind}": f"{module}:Mine"}},
        modules={module: bad.source},
    )
    if kind == "pth":
        (site.folder / "bad.pth").write_text("import bad_pth\n")
        (info / "RECORD").write_text("bad.pth,,\n")


class Environment:
    """Bad plugins of some kinds, installed together. The start is tried once."""

    def __init__(self, kinds: set[str]) -> None:
        self.kinds = sorted(kinds)
        self.limit = str(LIMITS_S[limit_of(kinds)])

    @cached_property
    def start(self) -> str:
        """Text of the refusal, and of the warnings before."""
        lines: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("tenonry.plugins")
        logger.addHandler(handler)
        try:
            CheckedFlag().prepare()
        except PluginError as error:
            lines += str(error).split("; PL")
        finally:
            logger.removeHandler(handler)
        return "\n".join(lines)


@pytest.fixture(scope="module", params=[HANGING, {*BAD} - HANGING], ids=[*LIMITS_S])
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Environment]:
    folder = tmp_path_factory.mktemp("bad") / "site"
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("PYTHONPATH", str(folder))
        patch.setattr(imported, "TIMEOUT_S", LIMITS_S[limit_of(request.param)])
        site = stack.enter_context(TmpPlugins(folder, see_installed=True))
        points = {"tenonry.points": {"sampler": "opener:POINT"}}
        modules = {"opener": OPENER, "tensorflow": ""}
        site.distribution("opener", entry_points=points, modules=modules)
        for kind in sorted(request.param):
            install(site, kind, BAD[kind])
        yield Environment(request.param)


def limit_of(kinds: set[str]) -> str:
    return "hangs" if kinds == HANGING else "others"


def module_of(kind: str) -> str:
    return f"bad_{kind.replace('-', '_')}"


def file_of(kind: str, bad: Bad) -> str:
    if bad.line:
        return f"{module_of(kind)}.py"
    if kind == "pth":
        return "bad.pth"
    return "METADATA" if bad.rule == "PL004" else "entry_points.txt"


def test_a_start_names_each(environment: Environment):
    for kind in environment.kinds:
        bad = BAD[kind]
        found = [
            line
            for line in environment.start.splitlines()
            if f"bad-{kind} 2.5" in line
            and bad.rule.removeprefix("PL") in line
            and bad.text in line
        ]
        assert found, environment.start
        assert ("error" if bad.is_error else "warning") in found[0]
        assert file_of(kind, bad) + (f":{bad.line}:" if bad.line else ":") in found[0]
        assert "; " in found[0]  # the remedy


def check(finding: dict[str, Any], kind: str) -> None:
    bad = BAD[kind]
    assert bad.text in finding["text"]
    assert finding["level"] == ("error" if bad.is_error else "warning")
    assert Path(finding["file"]).name == file_of(kind, bad)
    assert not bad.line or finding["line"] == bad.line
    assert finding["remedy"]


@pytest.mark.nightly
def test_a_check_names_each(environment: Environment, capsys):
    for kind in environment.kinds:
        words = ["--no-suite", "--json", "--import-timeout", environment.limit]
        main(["plugins", "check", f"bad-{kind}", *words])
        found = json.loads(capsys.readouterr().out)["findings"]
        check(next(each for each in found if each["rule"] == BAD[kind].rule), kind)


@pytest.mark.nightly
def test_a_doctor_names_each(environment: Environment, capsys):
    main(["doctor", "--json", "--import-timeout", environment.limit])
    found = json.loads(capsys.readouterr().out)["findings"]
    by_rule = {(each["distribution"], each["rule"]): each for each in found}
    for kind in environment.kinds:
        check(by_rule[f"bad-{kind} 2.5", BAD[kind].rule], kind)


def test_a_start_without_checks_names_what_its_imports_show(environment: Environment, caplog):
    """A hang and os._exit, which end no test, are in the tests of the watch."""
    for kind in {"exits", "heavy", "prints", "thread", "pth"}.intersection(environment.kinds):
        caplog.clear()
        sys.modules.pop(module_of(kind), None)
        sys.modules.pop("tensorflow", None)
        parser, _ = make_parser("generate")
        parser.parse_args(["Hello", "--stat-logger", f"bad-{kind}"])
        (message,) = [text for text in caplog.messages if text.startswith(f"bad-{kind} 2.5: ")]
        assert f"{file_of(kind, BAD[kind])}:{BAD[kind].line or 1}: " in message
        assert BAD[kind].text in message
        assert "; " in message  # the remedy

"""`tenonry plugins list | show`: kind, name, distribution, version and state, from metadata alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenonry.cli import main
from tenonry.errors import PluginError, PluginNotFound
from tenonry.plugin.discovery import installed
from tenonry.plugin.kinds import KINDS
from tenonry_commands.plugins import plugins, points
from tenonry_testkit.plugins import TmpPlugins

STAT_LOGGER = '''
from pydantic import Field
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.stat_logger import StatLogger

class Options(PluginOptions):
    level: int = Field(1, ge=0, le=3, description="How much.")
    where: str = "here"

class Mine(StatLogger):
    """Hears nothing in particular.

    What it hears stands elsewhere.
    """
    Options = Options
    def record(self, record):
        pass

def function():
    pass
'''

OPENER = '''
from tenonry.plugin import Point

class Sampler:
    """Chooses tokens."""

SAMPLERS = Point("acme.samplers", Sampler, {"slow": "acme-slow-sampler"})
'''


@pytest.fixture
def acme(site: TmpPlugins) -> TmpPlugins:
    site.distribution(
        "acme", version="2.5", modules={"acme_cli": STAT_LOGGER, "acme_hooks": '__doc__ = "Hooks of Acme."'},
        entry_points={
            "tenonry.stat_loggers": {"acme": "acme_cli:Mine"},
            "tenonry.plugins": {"acme-hooks": "acme_hooks", "acme": "acme_hooks"},
        },
    )  # fmt: skip
    site.distribution(
        "old-acme",
        requires=["tenonry>=99"],
        entry_points={"tenonry.schedulers": {"old": "old_acme:Old"}},
    )
    return site


@pytest.fixture
def opened(site: TmpPlugins) -> TmpPlugins:
    """A distribution that opens a point, and another that fills it."""
    site.distribution(
        "opener",
        entry_points={"tenonry.points": {"sampler": "opener:SAMPLERS"}},
        modules={"opener": OPENER},
    )
    site.distribution(
        "filler",
        entry_points={"acme.samplers": {"fast": "filler:Fast"}},
        modules={"filler": "from opener import Sampler\nclass Fast(Sampler): pass\n"},
    )
    return site


def tenonry(capsys: Any, *words: str) -> str:
    """Output of `tenonry plugins …`, without the process-wide set-up of the command line."""
    from tenonry.cli import make_parser

    parser, command = make_parser("plugins")
    assert command.run(parser.parse_args(words)) == 0
    out: str = capsys.readouterr().out
    return out


class TestList:
    def test_every_plugin_has_a_line(self, acme, capsys):
        lines = [line.split() for line in tenonry(capsys, "list").splitlines()]
        assert lines[0] == ["kind", "name", "distribution", "version", "tier", "state"]
        assert ["stat_logger", "acme", "acme", "2.5", "beta", "available"] in lines
        assert ["hook_module", "acme-hooks", "acme", "2.5", "beta", "active"] in lines
        assert ["launcher", "process", "tenonry", "0.1.0", "beta", "available"] in lines
        assert {line[4] for line in lines if line[0] == "engine_recovery"} == {"alpha"}
        assert {"acme_cli", "acme_hooks", "old_acme"}.isdisjoint(sys.modules)

    def test_one_kind_only(self, acme, capsys):
        kinds = {
            line.split()[0]
            for line in tenonry(capsys, "list", "--kind", "stat_logger").splitlines()[1:]
        }
        assert kinds == {"stat_logger"}

    def test_json(self, acme, capsys):
        rows = json.loads(tenonry(capsys, "list", "--json"))
        assert {"kind": "stat_logger", "name": "acme", "distribution": "acme", "version": "2.5", "tier": "beta",
                "state": "available", "target": "acme_cli:Mine"} in rows  # fmt: skip

    def test_what_does_not_fit_says_so(self, acme):
        (state,) = [listed.state for listed in plugins("scheduler") if listed.record.name == "old"]
        assert state.startswith("incompatible: old-acme 1.0 needs tenonry>=99")

    def test_two_claims_of_one_name_say_so(self, acme):
        acme.distribution("rival", entry_points={"tenonry.stat_loggers": {"acme": "rival:X"}})
        states = [listed.state for listed in plugins("stat_logger") if listed.record.name == "acme"]
        assert states == ["conflict: two distributions claim this name"] * 2

    def test_every_extension_point_of_the_kernel_is_there(self):
        found = {point.kind for point in points()}
        assert found >= {*KINDS, "command", "point", "hook_module"}

    def test_a_point_of_a_third_party_is_a_plugin_and_a_kind(self, opened):
        found = {(listed.record.kind, listed.record.name): listed for listed in plugins()}
        assert found["point", "sampler"].state == "available"
        assert found["sampler", "fast"].record.distribution == "filler"
        assert [listed.record.name for listed in plugins("sampler")] == ["fast"]

    def test_an_unknown_kind_lists_the_known_ones(self, opened):
        with pytest.raises(PluginNotFound, match=r"no kind of plugin 'samler'; kinds: .*sampler"):
            plugins("samler")

    def test_a_point_that_cannot_be_imported_is_broken_and_hides_no_other(self, opened):
        opened.distribution("bad", entry_points={"tenonry.points": {"bad": "no_such:POINT"}})
        states = {listed.record.name: listed.state for listed in plugins("point")}
        assert states["bad"].startswith("broken: point 'bad' (no_such:POINT, bad 1.0) cannot be")
        assert states["sampler"] == "available"

    def test_what_is_not_a_point_says_so(self, opened):
        opened.distribution("odd", entry_points={"tenonry.points": {"odd": "filler:Fast"}})
        states = {listed.record.name: listed.state for listed in plugins("point")}
        assert states["odd"].endswith("is not a tenonry.plugin.Point")

    def test_a_misspelt_group_is_listed_with_the_right_one(self, acme, capsys):
        acme.distribution("odd", entry_points={"tenonry.schedulerz": {"mine": "odd:Mine"}})
        (listed,) = [listed for listed in plugins("scheduler") if listed.record.name == "mine"]
        assert listed.state == (
            "never found: nothing reads the group 'tenonry.schedulerz'; write 'tenonry.schedulers'"
        )
        with pytest.raises(PluginError, match=r"nothing reads the group 'tenonry\.schedulerz'"):
            tenonry(capsys, "show", "mine")

    def test_a_distribution_that_does_not_fit_is_in_no_conflict(self, acme):
        acme.distribution(
            "elder",
            requires=["tenonry>=99"],
            entry_points={"tenonry.stat_loggers": {"acme": "elder:X"}},
        )
        states = [listed.state for listed in plugins("stat_logger") if listed.record.name == "acme"]
        assert states[0] == "available"
        assert states[1].startswith("incompatible: elder 1.0 needs tenonry>=99")


class TestShow:
    def test_everything_about_one(self, acme, capsys):
        out = tenonry(capsys, "show", "stat_logger/acme")
        assert "stat_logger acme" in out
        assert "class         acme_cli:Mine" in out
        assert "distribution  acme 2.5" in out
        assert "state         available" in out
        assert "tier          beta" in out
        assert "about         Hears nothing in particular." in out
        assert "\n\n                What it hears stands elsewhere.\n" in out
        assert "option        level: How much. (default 1)" in out
        assert "option        where: " in out

    def test_a_name_of_several_kinds_shows_all(self, acme, capsys):
        out = tenonry(capsys, "show", "acme")
        assert "stat_logger acme" in out
        assert "hook_module acme" in out

    def test_a_hook_module(self, acme, capsys):
        assert "about         Hooks of Acme." in tenonry(capsys, "show", "acme-hooks")

    def test_one_that_does_not_fit_is_not_imported(self, acme, capsys):
        out = tenonry(capsys, "show", "old")
        assert "incompatible: old-acme 1.0 needs" in out
        assert "old_acme" not in sys.modules

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("unknown", "no plugin is called 'unknown'; `tenonry plugins list` shows all names"),
            ("acmee", r"no plugin is called 'acmee'; did you mean 'acme'\? `tenonry plugins list`"),
            ("stat_logger/acmee", r"no stat logger is called 'acmee'; .*did you mean 'acme'\?"),
            (
                "nonsense/acme",
                "there is no kind of plugin 'nonsense'; kinds: .*executor, .*hook_module",
            ),
        ],
    )
    @pytest.mark.slow
    def test_an_unknown_one_is_an_error(self, acme, capsys, name, text):
        with pytest.raises(PluginNotFound, match=text):
            tenonry(capsys, "show", name)

    def test_one_that_cannot_be_imported_is_named(self, site, capsys):
        site.distribution(
            "bad",
            entry_points={"tenonry.stat_loggers": {"bad": "bad_cli:Mine"}},
            modules={"bad_cli": "1 / 0"},
        )
        with pytest.raises(PluginError, match=r"stat logger 'bad' .*ZeroDivisionError"):
            tenonry(capsys, "show", "bad")


class TestShowWhatIsNotInstalled:
    def test_a_class_of_a_file(self, site, capsys, tmp_path):
        """An author previews the users' output, before there is a package."""
        path = tmp_path / "mine.py"
        path.write_text(STAT_LOGGER)
        out = tenonry(capsys, "show", f"{path}:Mine")
        assert out.startswith(f"stat_logger {path}:Mine\n")
        assert f"  file          {path}\n" in out
        assert "  about         Hears nothing in particular.\n" in out
        assert "  option        level: How much. (default 1)\n" in out

    def test_a_class_of_a_module(self, acme, capsys):
        out = tenonry(capsys, "show", "acme_cli:Mine")
        assert out.startswith("stat_logger acme_cli:Mine\n")
        assert "  distribution  acme 2.5\n" in out

    def test_what_no_interface_of_the_kernel_knows(self, acme, capsys):
        assert tenonry(capsys, "show", "acme_cli:function").startswith("object acme_cli:function\n")

    def test_a_file_that_is_not_there(self, site, capsys):
        with pytest.raises(PluginError, match=r"'\./no\.py:Mine': file \./no\.py cannot be read"):
            tenonry(capsys, "show", "./no.py:Mine")

    def test_a_heavy_module_is_told(self, site, capsys, tmp_path, monkeypatch):
        """The front end imports what it checks, and `tenonry serve` waits for it."""
        site.distribution(
            "heavy",
            modules={"heavy_library": "", "heavy_plugin": "import heavy_library\n" + STAT_LOGGER},
        )
        monkeypatch.setattr("tenonry_commands.plugins.HEAVY", ("heavy_library",))
        out = tenonry(capsys, "show", "heavy_plugin:Mine")
        assert (
            "  warning       its module imports heavy_library; do that in its methods: the front end imports it"
            in out
        )
        assert "warning" not in tenonry(capsys, "show", "heavy_plugin:Mine"), "it is there already"

    def test_the_words_of_an_interface_are_not_those_of_a_plugin(self, site, capsys):
        begin, _, rest = STAT_LOGGER.partition('    """')
        site.distribution("silent", modules={"silent": begin + rest.partition('"""')[2]})
        assert "about" not in tenonry(capsys, "show", "silent:Mine")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.integration
def test_full_disk_is_one_sentence():
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "tenonry", "plugins", "list"]
        found = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 1
    assert found.stderr == "tenonry: error: [Errno 28] No space left on device\n"


class TestVerbsOfOthers:
    """Verbs below `plugins` in the group `tenonry.plugin_commands`."""

    def install(self, site: TmpPlugins, source: str) -> None:
        points = {"tenonry.plugin_commands": {"greet": "greeter:Greet"}}
        site.distribution("greeter", entry_points=points, modules={"greeter": source})

    def test_a_verb_gets_its_flags(self, site: TmpPlugins, capsys):
        self.install(site, """
            from tenonry.interfaces.command import Command
            class Greet(Command):
                summary = "Greet somebody."
                def add_arguments(self, parser): parser.add_argument("--loud", action="store_true")
                def run(self, args): print("HELLO" if args.loud else "hello"); return 3
            """)  # fmt: skip
        assert main(["plugins", "greet", "--loud"]) == 3
        assert capsys.readouterr().out == "HELLO\n"

    def test_one_that_fails_is_named_with_its_line(self, site: TmpPlugins, capsys):
        self.install(site, """
            from tenonry.interfaces.command import Command
            class Greet(Command):
                def add_arguments(self, parser): pass
                def run(self, args): raise KeyError("whom")
            """)  # fmt: skip
        assert main(["plugins", "greet"]) == 1
        text = "plugin greet (greeter 1.0) failed in its command: KeyError: 'whom'"
        error = capsys.readouterr().err
        assert error.startswith(f"tenonry: error: {text} ({site.folder}/greeter.py:")
        assert error.count("\n") == 1

    @pytest.mark.parametrize("source", [
        "raise OSError('gone')", "Greet = 3", "import none_such",
        "from tenonry.interfaces.command import Command\nclass Greet(Command): pass",
        ("from tenonry.interfaces.command import Command\nclass Greet(Command):\n"
        "    def add_arguments(self, parser): raise OSError('gone')\n    def run(self, args): return 0"),
    ])  # fmt: skip
    def test_a_broken_one_is_named_and_hides_no_other(self, site: TmpPlugins, source: str, capsys):
        self.install(site, source)
        assert main(["plugins", "list"]) == 0
        logged = capsys.readouterr().err
        assert "skipped `tenonry plugins greet`" in logged
        assert "greeter" in logged


def test_plugins_of_this_project_on_alpha_points_need_no_consent():
    for point in points():
        if point.tier == "alpha":
            own = {record.distribution for record in installed(point)}
            assert own <= {"tenonry", *point.provider.values()}, point.group

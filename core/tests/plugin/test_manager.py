"""One resolver for every kind: by name, by module:Class, by file; the same checks, the same texts."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import PluginError, PluginIncompatible, PluginNotFound
from tenonry.info import PluginRecord
from tenonry.interfaces.stat_logger import StatLogger
from tenonry.plugin import Point
from tenonry.plugin.checks import load_options, supported_versions
from tenonry.plugin.kinds import KINDS
from tenonry.plugin.manager import PluginManager, resolve_point
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry_testkit.kernel.plugins import STAT_LOGGER

CONFIG = EngineConfig(model="m")
LOGGERS = "tenonry.stat_loggers"


def resolve(name: str, manager: PluginManager | None = None, **options: Any) -> PluginRecord:
    chosen = PluginChoice(name=name, options=options)
    return (manager or PluginManager(discover=False)).resolve("stat_logger", chosen, CONFIG)


class TestByName:
    def test_an_entry_point_is_found_and_checked(self, acme):
        entry = resolve("good", level=2)
        assert entry.target == "acme:Mine"
        assert entry.distribution == "acme"
        assert entry.version == "2.5"
        cls = load_class(entry)
        assert issubclass(cls, StatLogger)
        assert load_options(entry, cls).level == 2

    @pytest.mark.parametrize(
        ("name", "error", "text"),
        [
            (
                "god",
                PluginNotFound,
                r"no stat logger is called 'god'; installed: .*; did you mean 'good'\?",
            ),
            ("missing", PluginIncompatible, "does not implement record of StatLogger"),
            (
                "future",
                PluginIncompatible,
                r"speaks version 2 of the stat_logger interface; this kernel can drive \[1\]",
            ),
            (
                "stranger",
                PluginIncompatible,
                r"is not a subclass of tenonry\.interfaces\.stat_logger\.StatLogger",
            ),
            ("function", PluginIncompatible, "is not a subclass of"),
            ("gone", PluginError, r"has no 'Gone'; acme defines \[.*'Mine'.*'function'.*\]"),
            (
                "nowhere",
                PluginError,
                "cannot be imported: ModuleNotFoundError: No module named 'acme_nowhere'",
            ),
        ],
    )
    def test_one_that_cannot_be_used_is_refused(self, acme, name, error, text):
        with pytest.raises(error, match=text) as caught:
            resolve(name)
        if error is not PluginNotFound:
            assert f"stat logger '{name}' (acme" in str(caught.value)
            assert "acme 2.5" in str(caught.value)

    def test_requirements_are_checked_before_anything_is_imported(self, site):
        site.install(
            "old-one",
            requires=["tenonry>=99"],
            entry_points={LOGGERS: {"old": "old_one:Mine"}},
            modules={"old_one.py": STAT_LOGGER},
        )
        with pytest.raises(
            PluginIncompatible, match=r"old-one 1\.0 needs tenonry>=99, but this is tenonry"
        ):
            resolve("old")
        assert "old_one" not in sys.modules

    def test_requirements_of_the_distribution_that_declares_the_entry_point_count(self, acme):
        """The module belongs to a distribution that fits; the one that names it does not."""
        acme.install(
            "front", requires=["tenonry>=99"], entry_points={LOGGERS: {"front": "acme:Mine"}}
        )
        with pytest.raises(PluginIncompatible, match=r"front 1\.0 needs tenonry>=99"):
            resolve("front")

    def test_two_claims_are_an_error(self, acme):
        acme.install("rival", entry_points={LOGGERS: {"good": "rival:Mine"}})
        text = r"claimed twice, by acme 2\.5 .* and rival 1\.0 .* \(tenonry_get_stat_logger of tenonry\)$"
        with pytest.raises(PluginError, match=text):
            resolve("good")

    def test_a_first_party_name_says_what_to_install(self, monkeypatch):
        provider = {"moon": "tenonry-executor-moon"}
        kind = dataclasses.replace(KINDS["executor"], provider=provider)
        monkeypatch.setitem(KINDS, "executor", kind)
        with pytest.raises(
            PluginNotFound, match="it comes with: pip install tenonry-executor-moon"
        ):
            PluginManager(discover=False).resolve("executor", PluginChoice(name="moon"), CONFIG)

    @pytest.mark.parametrize(
        ("source", "text"),
        [("import no_such_module", "ModuleNotFoundError"), ("1 / 0", "ZeroDivisionError: division by zero"),
         ("def f(:", "SyntaxError"), ("import sys; sys.exit(3)", "SystemExit: 3")],
    )  # fmt: skip
    def test_a_module_that_cannot_be_imported_is_named_with_the_cause(self, site, source, text):
        """Reliability, fault 27."""
        site.install(
            "bad",
            entry_points={LOGGERS: {"bad": "bad_module:Mine"}},
            modules={"bad_module.py": source},
        )
        with pytest.raises(
            PluginError, match=rf"stat logger 'bad' \(bad_module:Mine, bad 1\.0\) .*{text}"
        ) as caught:
            resolve("bad")
        assert caught.value.__cause__ is not None


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (
                {"levl": 2},
                r"unknown setting 'levl'; did you mean 'level'\?; known options: level, where",
            ),
            ({"level": 4}, r"level=4: .*less than or equal to 3"),
            ({"level": "x"}, r"level='x': 'x' is not an integer"),
            ({"level": 4, "where": 5}, r"level=4: .*; where=5: .*"),
        ],
    )
    def test_bad_ones_are_named_by_path_with_the_plugin(self, acme, options, text):
        with pytest.raises(
            PluginError, match=rf"options of stat logger 'good' \(acme:Mine, acme 2\.5\).*{text}"
        ):
            resolve("good", **options)

    def test_a_plugin_without_options_takes_none(self, site):
        site.install(
            "plain", modules={"plain.py": STAT_LOGGER + "\nMine.Options = StatLogger.Options\n"}
        )
        with pytest.raises(PluginError, match=r"unknown setting 'level'; known options: none"):
            resolve("plain:Mine", level=1)


class TestQualifiedNames:
    def test_module_and_class(self, acme):
        entry = resolve("acme:Mine")
        assert (entry.target, entry.distribution) == ("acme:Mine", "acme")

    def test_a_loose_module_needs_no_distribution(self, site):
        (site.folder / "loose_module.py").write_text(STAT_LOGGER, "utf-8")
        entry = resolve("loose_module:Mine")
        assert (entry.distribution, entry.version) == ("", "")
        assert "no distribution" in entry.label()

    def test_a_nested_class(self, site):
        (site.folder / "nested.py").write_text(
            STAT_LOGGER + "\nclass Box:\n    Inner = Mine\n", "utf-8"
        )
        assert load_class(resolve("nested:Box.Inner")).__name__ == "Mine"

    @pytest.mark.parametrize("name", ["__main__:Mine", ":Mine"])
    def test_main_is_refused_with_the_remedy(self, name):
        with pytest.raises(
            PluginError,
            match=r"of __main__, .* cannot be imported by other processes; give the file as path\.py:Mine",
        ):
            resolve(name)

    def test_an_entry_point_in_main_is_refused(self, acme):
        """The modules of the running program are no part of the message."""
        acme.install("lost", entry_points={KINDS["stat_logger"].group: {"lost": "__main__:Mine"}})
        with pytest.raises(
            PluginError, match=r"'lost' \(__main__:Mine, lost 1\.0\).* of __main__"
        ) as caught:
            resolve("lost")
        assert "defines" not in str(caught.value)

    @pytest.mark.parametrize("name", ["acme:", "acme:Mine.", "acme:.Mine"])
    def test_a_missing_class_is_refused(self, acme, name):
        with pytest.raises(PluginError, match="has no"):
            resolve(name)


class TestFiles:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        made = tmp_path / "my_logger.py"
        made.write_text(STAT_LOGGER, "utf-8")
        return made

    def test_the_source_travels_in_the_plan(self, path):
        entry = resolve(f"{path}:Mine", level=2)
        assert entry.source == STAT_LOGGER
        assert entry.path == str(path)
        assert (entry.distribution, entry.version) == ("", "")
        path.unlink()  # the other process has no such file
        sent = PluginPlan.decode(PluginPlan((entry,)).encode())
        sys.modules.pop(entry.target.partition(":")[0])
        found = sent.get("stat_logger")
        cls = load_class(found)
        assert (cls.__name__, load_options(found, cls).level) == ("Mine", 2)

    def test_the_module_is_named_after_its_text(self, path, tmp_path):
        copy = tmp_path / "copy.py"
        copy.write_text(STAT_LOGGER, "utf-8")
        assert resolve(f"{path}:Mine").target == resolve(f"{copy}:Mine").target
        copy.write_text(STAT_LOGGER + "\n", "utf-8")
        assert resolve(f"{path}:Mine").target != resolve(f"{copy}:Mine").target

    def test_a_relative_path_is_resolved_where_it_was_typed(self, path, monkeypatch):
        monkeypatch.chdir(path.parent)
        assert resolve("my_logger.py:Mine").path == str(path)
        assert resolve("./my_logger.py:Mine").path == str(path)

    def test_a_traceback_shows_the_lines_of_the_file(self, path):
        path.write_text(STAT_LOGGER + "\n\nraise RuntimeError('here')\n", "utf-8")
        with pytest.raises(PluginError, match="RuntimeError: here") as caught:
            resolve(f"{path}:Mine")
        cause = caught.value.__cause__
        assert cause is not None
        last = cause.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        assert last is not None
        assert last.tb_frame.f_code.co_filename == str(path)

    def test_a_failed_import_is_tried_again(self, path):
        path.write_text("1 / 0", "utf-8")
        for _ in range(2):
            with pytest.raises(PluginError, match="ZeroDivisionError"):
                resolve(f"{path}:Mine")

    def test_a_missing_or_unreadable_file_is_named(self, tmp_path, path):
        for name, text in ((tmp_path / "none.py", "No such file"), (path, "is not UTF-8")):
            if name == path:
                path.write_bytes(b"# \xff")
            with pytest.raises(PluginError, match=text) as caught:
                resolve(f"{name}:Mine")
            assert str(name) in str(caught.value)

    def test_a_file_without_a_class_is_an_unknown_name(self, path):
        with pytest.raises(
            PluginNotFound, match=r"give an installed name, module:Class or path\.py:Class"
        ):
            resolve(str(path))

    def test_the_class_is_checked_as_any_other(self, path):
        with pytest.raises(PluginIncompatible, match="does not implement record"):
            resolve(f"{path}:Missing")


POLICIES = Point("acme.policies", provider={"even": "acme-even"})


class TestOwnedPoints:
    """Points that the owner of a part opens are resolved by the same rules."""

    def test_by_name_and_by_qualified_name(self, site):
        site.install(
            "fair",
            entry_points={POLICIES.group: {"fair": "fair:Fair"}},
            modules={"fair.py": "class Fair: pass"},
        )
        for name in ("fair", "fair:Fair"):
            found, entry = resolve_point(POLICIES, name)
            assert found.__name__ == "Fair"
            assert entry.distribution == "fair"

    def test_by_file(self, tmp_path):
        path = tmp_path / "policy.py"
        path.write_text("class Fair: pass", "utf-8")
        assert resolve_point(POLICIES, f"{path}:Fair")[0].__name__ == "Fair"

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("even", "no policy is called 'even'.*pip install acme-even"),
            ("x:Y", "cannot be imported"),
            ("__main__:X", "of __main__"),
        ],
    )
    def test_the_errors_are_the_same(self, name, text):
        with pytest.raises(PluginError, match=text):
            resolve_point(POLICIES, name)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_hook_an_interface_and_a_version(kind):
    interface = KINDS[kind].load_base()
    assert interface.interface_version in supported_versions(interface)
    assert hasattr(PluginManager(discover=False).hook, KINDS[kind].hook)

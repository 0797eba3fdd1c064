"""One resolver for every kind: by name, by module:Class, by file, by hook; the same checks, the same words."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from tenonry import hookimpl
from tenonry.config import EngineConfig, PluginChoice, PluginPolicy
from tenonry.errors import (
    ConfigError,
    ModelError,
    PluginError,
    PluginFault,
    PluginIncompatible,
    PluginNotFound,
)
from tenonry.info import ModelInfo, PluginRecord
from tenonry.interfaces.stat_logger import StatLogger
from tenonry.plugin import Point
from tenonry.plugin.checks import load_options, supported_versions
from tenonry.plugin.kinds import HOOK_MODULES, KINDS
from tenonry.plugin.manager import PluginManager, resolve_point
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry_testkit.kernel.plugins import HOOKS, STAT_LOGGER, raising_hooks
from tenonry_testkit.kernel.site import Site

CONFIG = EngineConfig(model="m")
LOGGERS = "tenonry.stat_loggers"


def resolve(name: str, manager: PluginManager | None = None, **options: Any) -> PluginRecord:
    chosen = PluginChoice(name=name, options=options)
    return (manager or PluginManager(discover=False)).resolve("stat_logger", chosen, CONFIG)


@pytest.fixture
def acme(site: Site) -> Site:
    """A distribution with a stat logger, as a third party would publish it."""
    site.install(
        "acme",
        version="2.5",
        requires=["tenonry>=0.1,<0.2"],
        entry_points={
            LOGGERS: {
                "good": "acme:Mine", "missing": "acme:Missing", "future": "acme:Future", "stranger": "acme:Stranger",
                "function": "acme:function", "gone": "acme:Gone", "nowhere": "acme_nowhere:Mine",
            }
        },
        modules={"acme.py": STAT_LOGGER},
    )  # fmt: skip
    return site


class TestByName:
    def test_an_entry_point_is_found_and_checked(self, acme):
        entry = resolve("good", level=2)
        assert (entry.target, entry.distribution, entry.version) == ("acme:Mine", "acme", "2.5")
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

    def test_requirements_of_whoever_declares_the_entry_point_count(self, acme):
        """The module belongs to a distribution that fits; the one that names it does not."""
        acme.install(
            "front", requires=["tenonry>=99"], entry_points={LOGGERS: {"front": "acme:Mine"}}
        )
        with pytest.raises(PluginIncompatible, match=r"front 1\.0 needs tenonry>=99"):
            resolve("front")

    def test_two_claims_are_an_error(self, acme):
        acme.install("rival", entry_points={LOGGERS: {"good": "rival:Mine"}})
        with pytest.raises(PluginError, match=r"claimed twice, by acme 2\.5 .* and rival 1\.0"):
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
            ({"level": "x"}, r"level='x': .*valid integer"),
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
            match=r"of __main__ cannot be imported by other processes; give the file as path\.py:Mine",
        ):
            resolve(name)

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

    def test_a_file_without_a_class_is_a_name_that_nobody_knows(self, path):
        with pytest.raises(
            PluginNotFound, match=r"give an installed name, module:Class or path\.py:Class"
        ):
            resolve(str(path))

    def test_the_class_is_checked_as_any_other(self, path):
        with pytest.raises(PluginIncompatible, match="does not implement record"):
            resolve(f"{path}:Missing")


class TestHooks:
    def test_a_hook_wins_over_an_entry_point(self, acme):
        manager = PluginManager(discover=False)
        (acme.folder / "better.py").write_text(STAT_LOGGER, "utf-8")
        (acme.folder / "my_hooks.py").write_text(
            HOOKS.format(answer="better:Mine", name="good"), "utf-8"
        )
        manager.register(importlib.import_module("my_hooks"))
        assert resolve("good", manager).target == "better:Mine"
        assert resolve("good").target == "acme:Mine"

    def test_a_hook_that_knows_nothing_leaves_it_to_the_next(self, acme):
        manager = PluginManager(discover=False)
        (acme.folder / "shy_hooks.py").write_text(
            HOOKS.format(answer="better:Mine", name="else"), "utf-8"
        )
        manager.register(importlib.import_module("shy_hooks"))
        assert resolve("good", manager).target == "acme:Mine"

    def test_hooks_see_the_configuration(self, acme):
        class Hooks:
            @hookimpl
            def tenonry_get_stat_logger(self, name: str, config: EngineConfig) -> str | None:
                return "acme:Mine" if name == "auto" and config.max_num_seqs == 7 else None

        manager = PluginManager(discover=False)
        manager.register(Hooks())
        choice = PluginChoice(name="auto")
        assert (
            manager.resolve("stat_logger", choice, EngineConfig(model="m", max_num_seqs=7)).target
            == "acme:Mine"
        )
        with pytest.raises(PluginNotFound):
            manager.resolve("stat_logger", choice, CONFIG)

    def test_a_misspelt_hook_is_an_error(self):
        class Hooks:
            @hookimpl
            def tenonry_get_stat_loger(self, name: str) -> None: ...

        with pytest.raises(PluginError, match=r"hook module mine: .*tenonry_get_stat_loger"):
            PluginManager(discover=False).register(Hooks(), name="mine")

    def test_a_hook_with_an_unknown_argument_is_an_error(self):
        class Hooks:
            @hookimpl
            def tenonry_get_stat_logger(self, name: str, settings: object) -> None: ...

        manager = PluginManager(discover=False)
        with pytest.raises(PluginError, match=r"hook module mine: .*settings"):
            manager.register(Hooks(), name="mine")
        with pytest.raises(PluginNotFound):  # what was refused is gone
            resolve("nobody", manager)

    def test_a_name_is_taken_once(self):
        manager = PluginManager(discover=False)
        manager.register(type("One", (), {})(), name="mine")
        with pytest.raises(PluginError, match="hook module mine: Plugin name already registered"):
            manager.register(type("Two", (), {})(), name="mine")

    @pytest.mark.parametrize("answer", [StatLogger, 5, "no colon", b"acme:Mine"])
    def test_an_answer_that_is_no_name_of_a_class_is_an_error(self, answer):
        class Hooks:
            @hookimpl
            def tenonry_get_stat_logger(self, name: str) -> Any:
                return answer

        manager = PluginManager(discover=False)
        manager.register(Hooks(), name="mine")
        with pytest.raises(
            PluginError, match=r"tenonry_get_stat_logger answered .*for 'x'; .*\"module:Class\""
        ):
            resolve("x", manager)


class TestHookModules:
    """Installed hook modules are active unless `plugins.allow` or `plugins.disable` says otherwise."""

    @pytest.fixture
    def hooks(self, acme: Site) -> Site:
        acme.install(
            "acme-hooks",
            version="1.2",
            entry_points={HOOK_MODULES.group: {"acme-hooks": "acme_hooks"}},
            modules={"acme_hooks.py": HOOKS.format(answer="acme:Mine", name="hooked")},
        )
        return acme

    def names(self, manager: PluginManager) -> list[str]:
        return [record.name for record in manager.hook_modules if record.name.startswith("acme")]

    def test_an_installed_one_is_active_and_recorded(self, hooks):
        manager = PluginManager()
        assert resolve("hooked", manager).target == "acme:Mine"
        record = next(record for record in manager.hook_modules if record.name == "acme-hooks")
        assert (record.kind, record.target, record.distribution, record.version) == (
            "hook_module", "acme_hooks", "acme-hooks", "1.2",
        )  # fmt: skip

    @pytest.mark.parametrize(
        "policy",
        [
            PluginPolicy(disable=("acme-hooks",)),
            PluginPolicy(allow=()),
            PluginPolicy(allow=("acme-hooks",), disable=("acme-hooks",)),
        ],
    )
    def test_one_that_is_not_wanted_is_not_even_imported(self, hooks, policy):
        assert self.names(PluginManager(policy)) == []
        assert "acme_hooks" not in sys.modules

    def test_only_the_allowed_are_active(self, hooks):
        assert self.names(PluginManager(PluginPolicy(allow=("acme-hooks",)))) == ["acme-hooks"]

    @pytest.mark.parametrize(
        "policy", [PluginPolicy(allow=("acme-hook",)), PluginPolicy(disable=("acme-hook",))]
    )
    def test_an_unknown_name_in_the_policy_is_an_error(self, hooks, policy):
        with pytest.raises(
            ConfigError,
            match=r"name \['acme-hook'\], which are not installed; installed: .*acme-hooks",
        ):
            PluginManager(policy)

    def test_its_requirements_are_checked_before_it_is_imported(self, site):
        site.install(
            "old-hooks", requires=["tenonry<0.1"], entry_points={HOOK_MODULES.group: {"old": "old_hooks"}},
            modules={"old_hooks.py": ""},
        )  # fmt: skip
        with pytest.raises(
            PluginIncompatible, match=r"old-hooks 1\.0 needs tenonry<0\.1.*: --disable-plugin old$"
        ):
            PluginManager()
        assert "old_hooks" not in sys.modules

    def test_one_that_cannot_be_imported_stops_the_start_with_the_remedy(self, site):
        site.install(
            "bad-hooks",
            entry_points={HOOK_MODULES.group: {"bad": "bad_hooks"}},
            modules={"bad_hooks.py": "1 / 0"},
        )
        with pytest.raises(
            PluginError,
            match=r"hook module 'bad' \(bad_hooks, bad-hooks 1\.0\) .*ZeroDivisionError",
        ) as caught:
            PluginManager()
        assert str(caught.value).endswith("uninstall it, or disable it: --disable-plugin bad")
        assert PluginManager(PluginPolicy(disable=("bad",)))

    def test_an_attribute_of_a_module_may_be_the_hook_module(self, acme):
        source = (
            "class H:\n"
            + "\n".join(
                "    " + line
                for line in HOOKS.format(answer="acme:Mine", name="hooked").splitlines()
            ).replace("(name", "(self, name")
            + "\nhooks = H()\n"
        )
        acme.install(
            "boxed",
            entry_points={HOOK_MODULES.group: {"boxed": "boxed_hooks:hooks"}},
            modules={"boxed_hooks.py": source},
        )
        assert resolve("hooked", PluginManager()).target == "acme:Mine"

    def test_two_distributions_with_one_name_are_an_error_naming_both(self, hooks):
        hooks.install(
            "rival",
            version="9",
            entry_points={HOOK_MODULES.group: {"acme-hooks": "rival_hooks"}},
            modules={"rival_hooks.py": ""},
        )
        with pytest.raises(
            PluginError,
            match=r"hook_module 'acme-hooks' is claimed twice, by acme-hooks 1\.2 .* and rival 9",
        ):
            PluginManager()

    @pytest.mark.parametrize(
        ("hook", "arguments", "call"),
        [
            ("tenonry_get_stat_logger", "name, config", lambda manager: resolve("x", manager)),
            ("tenonry_resolve_model", "config", lambda manager: manager.resolve_model(CONFIG)),
            (
                "tenonry_configured",
                "config",
                lambda manager: manager.call("tenonry_configured", config=CONFIG),
            ),
            (
                "tenonry_engine_ready",
                "info",
                lambda manager: manager.call("tenonry_engine_ready", info=None),
            ),
        ],
    )
    def test_one_whose_hook_raises_is_named_with_its_distribution(
        self, site, hook, arguments, call
    ):
        site.install(
            "raising", version="4", entry_points={HOOK_MODULES.group: {"raiser": "raiser_hooks"}},
            modules={"raiser_hooks.py": raising_hooks(hook, arguments)},
        )  # fmt: skip
        with pytest.raises(
            PluginFault,
            match=rf"plugin raiser \(raising 4\) failed in {hook}: ValueError: on purpose",
        ) as caught:
            call(PluginManager())
        assert isinstance(caught.value.__cause__, ValueError)
        assert (caught.value.plugin, caught.value.distribution, caught.value.version, caught.value.call) == (
            "raiser", "raising", "4", hook,
        )  # fmt: skip

    def test_an_error_of_ours_passes_as_it_is(self, site):
        source = raising_hooks("tenonry_configured", "config", 'ConfigError("refused on purpose")')
        site.install(
            "raising", entry_points={HOOK_MODULES.group: {"raiser": "strict_hooks"}},
            modules={"strict_hooks.py": "from tenonry.errors import ConfigError\n" + source},
        )  # fmt: skip
        with pytest.raises(ConfigError, match=r"^refused on purpose$"):
            PluginManager().call("tenonry_configured", config=CONFIG)


class TestModels:
    def test_the_first_hook_that_knows_a_model_answers(self):
        info = ModelInfo(name="m", path="", architecture="A", max_model_len=8, vocab_size=4)

        class Hooks:
            @hookimpl
            def tenonry_resolve_model(self, config: EngineConfig) -> ModelInfo | None:
                return info if config.model == "m" else None

        manager = PluginManager(discover=False)
        manager.register(Hooks())
        assert manager.resolve_model(CONFIG) is info
        with pytest.raises(ModelError, match="model 'other' was found by no plugin"):
            manager.resolve_model(EngineConfig(model="other"))

    def test_a_model_that_no_hook_knows_says_what_to_install(self):
        with pytest.raises(ModelError, match=r"'no/such' .* needs: pip install tenonry-hf-hub"):
            PluginManager(discover=False).resolve_model(EngineConfig(model="no/such"))


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

"""Hook modules: selection of active ones, meaning of their answers, and attribution of failures."""

from __future__ import annotations

import importlib
import sys
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
from tenonry.plugin.kinds import HOOK_MODULES
from tenonry.plugin.manager import PluginManager
from tenonry_testkit.kernel.plugins import HOOKS, STAT_LOGGER, raising_hooks
from tenonry_testkit.kernel.site import Site

CONFIG = EngineConfig(model="m")
LOGGERS = "tenonry.stat_loggers"


def resolve(name: str, manager: PluginManager | None = None, **options: Any) -> PluginRecord:
    chosen = PluginChoice(name=name, options=options)
    return (manager or PluginManager(discover=False)).resolve("stat_logger", chosen, CONFIG)


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

    @pytest.mark.parametrize(
        ("answer", "name"), [("acme:Mine", "good"), ("better:Mine", "better:Mine")]
    )
    def test_the_plan_names_what_was_chosen(self, acme, answer, name):
        """An entry point by its name, and any other class by its place."""
        (acme.folder / "better.py").write_text(STAT_LOGGER, "utf-8")

        class Hooks:
            @hookimpl
            def tenonry_get_stat_logger(self, name: str) -> str | None:
                return answer if name == "auto" else None

        manager = PluginManager(discover=False)
        manager.register(Hooks())
        record = resolve("auto", manager, level=2)
        assert (record.name, record.options) == (name, {"level": 2})

    def test_a_hook_that_knows_nothing_leaves_it_to_the_next(self, acme):
        manager = PluginManager(discover=False)
        (acme.folder / "shy_hooks.py").write_text(
            HOOKS.format(answer="better:Mine", name="else"), "utf-8"
        )
        manager.register(importlib.import_module("shy_hooks"))
        assert resolve("good", manager).target == "acme:Mine"

    def test_the_kernels_answer_follows_every_default(self, acme):
        """A `trylast` hook is a default that any plain one overrides; entry points answer what is left."""

        def answering(target: str, **marks: bool) -> object:
            class Hooks:
                @hookimpl(**marks)
                def tenonry_get_stat_logger(self, name: str) -> str | None:
                    return target if name == "good" else None

            return Hooks()

        source = STAT_LOGGER + "class Default(Mine): ...\nclass Plain(Mine): ...\n"
        (acme.folder / "others.py").write_text(source, "utf-8")
        manager = PluginManager(discover=False)
        assert resolve("good", manager).target == "acme:Mine"
        manager.register(answering("others:Default", trylast=True))
        assert resolve("good", manager).target == "others:Default"
        manager.register(answering("others:Plain"))
        manager.register(answering("others:Mine", trylast=True))
        assert resolve("good", manager).target == "others:Plain"

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
        with pytest.raises(PluginNotFound):  # rejected modules are gone
            resolve("unknown", manager)

    def test_a_name_is_taken_once(self):
        manager = PluginManager(discover=False)
        manager.register(type("One", (), {})(), name="mine")
        with pytest.raises(PluginError, match="hook module mine: Plugin name already registered"):
            manager.register(type("Two", (), {})(), name="mine")

    @pytest.mark.parametrize("answer", [StatLogger, 5, "no colon", b"acme:Mine"])
    def test_an_answer_that_is_no_name_of_a_class_is_an_error(self, answer):
        calls = []

        class Hooks:
            @hookimpl
            def tenonry_get_stat_logger(self, name: str) -> Any:
                calls.append(name)
                return answer

        manager = PluginManager(discover=False)
        manager.register(Hooks(), name="mine")
        with pytest.raises(
            PluginError,
            match=r"tenonry_get_stat_logger of mine answered .*for 'x'; .*\"module:Class\"",
        ):
            resolve("x", manager)
        assert calls == ["x"]  # the error calls no hook again


FAILED = r"plugin acme-bad \(acme-bad 1.2\) failed in tenonry_configured: "


class TestFaults:
    """Whatever a hook raises names its module, distribution and version."""

    @pytest.mark.parametrize(
        ("error", "kind", "text"),
        [
            ("ValueError('no')", PluginFault, FAILED + "ValueError: no"),
            ("SystemExit(3)", PluginFault, FAILED + "SystemExit: 3"),
            ("ConfigError('no')", ConfigError, r"^no \(tenonry_configured of acme-bad, acme-bad 1.2\)$"),
        ],
    )  # fmt: skip
    def test_its_module_is_named(self, acme, error, kind, text):
        acme.install(
            "acme-bad",
            version="1.2",
            entry_points={HOOK_MODULES.group: {"acme-bad": "acme_bad"}},
            modules={
                "acme_bad.py": "from tenonry.errors import ConfigError\n"
                "from tenonry.plugin.hookspecs import hookimpl\n"
                f"@hookimpl\ndef tenonry_configured(config):\n    raise {error}\n"
            },
        )
        manager = PluginManager()
        with pytest.raises(kind, match=text):
            manager.call("tenonry_configured", config=CONFIG)


class TestHookModules:
    """Installed hook modules are active unless `plugins.allow` or `plugins.disable` excludes them."""

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
        assert record.kind == "hook_module"
        assert record.target == "acme_hooks"
        assert record.distribution == "acme-hooks"
        assert record.version == "1.2"

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

    def test_one_that_says_that_it_is_idle_is_neither_called_nor_recorded(self, hooks, monkeypatch):
        monkeypatch.setattr(
            importlib.import_module("acme_hooks"), "is_idle", lambda: True, raising=False
        )
        manager = PluginManager()
        assert self.names(manager) == []
        with pytest.raises(PluginNotFound):
            resolve("hooked", manager)
        monkeypatch.setattr("acme_hooks.is_idle", lambda: False)
        assert self.names(PluginManager()) == ["acme-hooks"]

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
            match=r"hook module 'bad' \(bad_hooks, bad-hooks 1\.0\) .*ZeroDivisionError: .* \(.*bad_hooks\.py:1\); fix",
        ) as caught:
            PluginManager()
        assert str(caught.value).endswith(
            "uninstall bad-hooks 1.0, or disable it: --disable-plugin bad"
        )
        assert PluginManager(PluginPolicy(disable=("bad",)))

    def test_a_misspelt_hook_stops_the_start_with_the_remedy(self, site):
        source = "from tenonry import hookimpl\n@hookimpl\ndef tenonry_configred(config): ...\n"
        site.install(
            "bad-hooks",
            entry_points={HOOK_MODULES.group: {"bad": "bad_hooks"}},
            modules={"bad_hooks.py": source},
        )
        with pytest.raises(
            PluginError, match="hook module bad: unknown hook 'tenonry_configred'"
        ) as caught:
            PluginManager()
        assert str(caught.value).endswith(
            "uninstall bad-hooks 1.0, or disable it: --disable-plugin bad"
        )

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
            match=(
                r"hook_module 'acme-hooks' is claimed twice, by acme-hooks 1\.2 .* and rival 9 \(rival_hooks\); "
                r"uninstall one of them; uninstall rival 9, or disable it"
            ),
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
        assert caught.value.plugin == "raiser"
        assert caught.value.distribution == "raising"
        assert caught.value.version == "4"
        assert caught.value.call == hook


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

"""The resolver treats temporary distributions as real ones, and they leave no trace."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys

import pytest

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import PluginError, PluginIncompatible, PluginNotFound
from tenonry_testkit.plugins import TmpPlugins

CONFIG = EngineConfig(model="fake")
LOGGER = """
    from tenonry.interfaces.stat_logger import StatLogger

    class Quiet(StatLogger):
        def record(self, record):
            pass
"""
GROUP = "tenonry.stat_loggers"


def install(
    plugins, name="my-logger", version="2.3", module="made_logger", source=LOGGER, **options
):
    options.setdefault("requires", ["tenonry>=0.1,<0.2"])
    plugins.distribution(
        name,
        version,
        entry_points={GROUP: {"quiet": f"{module}:Quiet"}},
        modules={module: source},
        **options,
    )


def resolve(plugins, name="quiet"):
    return plugins.manager().resolve("stat_logger", PluginChoice(name=name), CONFIG)


def test_installed_plugin_resolves_with_its_distribution_and_version(tmp_plugins):
    install(tmp_plugins)
    entry = resolve(tmp_plugins)
    assert (entry.distribution, entry.version, entry.target) == (
        "my-logger",
        "2.3",
        "made_logger:Quiet",
    )


def test_really_installed_plugins_are_hidden(tmp_plugins):
    install(tmp_plugins)
    with pytest.raises(PluginNotFound, match=r"installed: quiet \(my-logger 2.3\)") as caught:
        resolve(tmp_plugins, "console")
    assert "prometheus" not in str(caught.value)


def test_wrong_requirement_is_refused_before_import(tmp_plugins):
    install(tmp_plugins, requires=["tenonry>=7"], source="raise SystemExit('imported')")
    with pytest.raises(PluginIncompatible, match=r"my-logger 2.3 needs tenonry>=7"):
        resolve(tmp_plugins)


def test_two_distributions_with_one_name_are_both_named(tmp_plugins):
    install(tmp_plugins)
    install(tmp_plugins, name="other-logger", version="9.9", module="other_logger")
    with pytest.raises(PluginError, match=r"my-logger 2.3 .* and other-logger 9.9"):
        resolve(tmp_plugins)


def test_import_error_names_the_plugin(tmp_plugins):
    install(tmp_plugins, source="import no_such_library")
    with pytest.raises(PluginError, match=r"my-logger 2.3.*no_such_library"):
        resolve(tmp_plugins)


def test_misspelt_hook_is_an_error_that_names_the_module(tmp_plugins):
    source = """
        from tenonry.plugin.hookspecs import hookimpl

        @hookimpl
        def tenonry_get_sheduler(name, config):
            return None
    """
    tmp_plugins.distribution(
        "my-hooks",
        entry_points={"tenonry.plugins": {"mine": "my_hooks"}},
        modules={"my_hooks": source},
    )
    with pytest.raises(PluginError, match="tenonry_get_sheduler"):
        tmp_plugins.manager()


def test_hook_module_in_a_package_is_found(tmp_plugins):
    source = """
        from tenonry.plugin.hookspecs import hookimpl

        @hookimpl
        def tenonry_get_stat_logger(name, config):
            return "made_logger:Quiet" if name == "alias" else None
    """
    install(tmp_plugins)
    tmp_plugins.distribution(
        "my-hooks",
        entry_points={"tenonry.plugins": {"mine": "pkg.hooks"}},
        modules={"pkg.hooks": source},
    )
    assert resolve(tmp_plugins, "alias").target == "made_logger:Quiet"
    assert [record.name for record in tmp_plugins.manager().hook_modules] == ["mine"]


def test_nothing_is_left_behind(tmp_path):
    before = (list(sys.path), importlib.metadata.entry_points)
    with TmpPlugins(tmp_path) as plugins:
        install(plugins)
        assert resolve(plugins)
        assert "made_logger" in sys.modules
    assert (list(sys.path), importlib.metadata.entry_points) == before
    assert "made_logger" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("made_logger")


def test_really_installed_plugins_can_be_seen(tmp_path):
    with TmpPlugins(tmp_path, see_installed=True) as plugins:
        install(plugins)
        points = {point.name for point in importlib.metadata.entry_points(group="pytest11")}
        assert "tenonry" in points
        assert resolve(plugins).name == "quiet"

"""Installed plugins, from metadata alone: real metadata of temporary distributions, nothing imported."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys

import pytest

from tenonry.errors import PluginError, PluginIncompatible, PluginNotFound
from tenonry.plugin import discovery
from tenonry.plugin.discovery import (
    check_requirements,
    distribution_of_module,
    find_entry_point,
    installed,
    not_found,
)
from tenonry.plugin.kinds import KINDS
from tenonry.version import __version__
from tenonry_testkit.kernel.site import Site

LOGGERS = KINDS["stat_logger"]
GROUP = LOGGERS.group


@pytest.fixture
def acme(site: Site) -> Site:
    site.install(
        "acme-loggers",
        version="2.5",
        entry_points={GROUP: {"acme": "acme_loggers:Mine", "other": "acme_loggers:Other"}},
        modules={"acme_loggers.py": "raise RuntimeError('imported')"},
    )
    return site


class TestInstalled:
    def test_an_entry_point_is_found_with_its_distribution_and_not_imported(self, acme):
        found = [entry for entry in installed(LOGGERS) if entry.distribution == "acme-loggers"]
        assert [(e.kind, e.name, e.target, e.version) for e in found] == [
            ("stat_logger", "acme", "acme_loggers:Mine", "2.5"),
            ("stat_logger", "other", "acme_loggers:Other", "2.5"),
        ]
        assert "acme_loggers" not in sys.modules

    def test_what_is_installed_while_the_process_runs_is_found_at_once(self, acme):
        """A cache with coarse times would hide a plugin from the user who has just installed it."""
        assert find_entry_point(LOGGERS, "late") is None
        acme.install("late-logger", entry_points={GROUP: {"late": "late:Late"}})
        assert find_entry_point(LOGGERS, "late") is not None

    def test_a_distribution_that_is_being_removed_is_left_out(self, acme):
        """pip deletes METADATA before the entry points, or the other way round."""
        acme.install("going", entry_points={GROUP: {"acme": "acme_loggers:Mine"}})
        (acme.folder / "going-1.0.dist-info" / "METADATA").unlink()
        acme.install("arrived", entry_points={GROUP: {"new": "new:New"}})  # so it is read again
        names = [entry.distribution for entry in installed(LOGGERS) if entry.name == "acme"]
        assert names == ["acme-loggers"]

    def test_metadata_is_read_again_only_when_a_distribution_came_or_went(self, acme, monkeypatch):
        reads, read = [], importlib.metadata.entry_points
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda: reads.append(1) or read())
        acme.install("first", entry_points={GROUP: {"first": "first:F"}})
        for kind in ("stat_logger", "scheduler", "stat_logger"):
            installed(KINDS[kind])
        assert len(reads) == 1
        acme.install("second", entry_points={GROUP: {"second": "second:S"}})
        assert {"first", "second"} <= {entry.name for entry in installed(LOGGERS)}
        shutil.rmtree(acme.folder / "first-1.0.dist-info")
        assert "first" not in {entry.name for entry in installed(LOGGERS)}
        assert len(reads) == 3

    def test_a_name_claimed_twice_is_an_error_naming_both(self, acme):
        """Reliability, fault 27."""
        acme.install("rival", version="0.3", entry_points={GROUP: {"acme": "rival:Acme"}})
        with pytest.raises(PluginError) as caught:
            find_entry_point(LOGGERS, "acme")
        text = str(caught.value)
        assert "stat_logger 'acme' is claimed twice" in text
        assert "acme-loggers 2.5 (acme_loggers:Mine)" in text
        assert "rival 0.3 (rival:Acme)" in text
        assert "uninstall one of them or give the class as module:Class" in text

    def test_a_name_claimed_twice_with_one_target_is_an_error_too(self, acme):
        acme.install("copy", version="2.5", entry_points={GROUP: {"acme": "acme_loggers:Mine"}})
        with pytest.raises(
            PluginError, match=r"by acme-loggers 2\.5 \(.*\) and copy 2\.5 \([^)]*\); uninstall"
        ):
            find_entry_point(LOGGERS, "acme")

    def test_a_distribution_that_does_not_fit_claims_no_name(self, acme, caplog):
        acme.install("old", requires=["tenonry>=99"], entry_points={GROUP: {"acme": "old:Acme"}})
        found = find_entry_point(LOGGERS, "acme")
        assert found is not None
        assert found.distribution == "acme-loggers"
        assert "skipped stat logger 'acme' (old:Acme, old 1.0)" in caplog.text
        assert "needs tenonry>=99" in caplog.text


class TestNotFound:
    def test_lists_what_is_installed_and_the_nearest_spelling(self, acme):
        error = not_found(LOGGERS, "acmee")
        assert isinstance(error, PluginNotFound)
        assert isinstance(error, LookupError)
        assert "no stat logger is called 'acmee'" in str(error)
        assert "acme (acme-loggers 2.5), " in str(error)
        assert "other (acme-loggers 2.5)" in str(error)
        assert "did you mean 'acme'?" in str(error)

    @pytest.mark.parametrize(
        ("kind", "name"), [(kind, name) for kind in KINDS for name in KINDS[kind].provider]
    )
    def test_says_what_to_install_for_a_first_party_name(self, kind, name, monkeypatch):
        monkeypatch.setattr(discovery, "installed", lambda point: [])
        text = str(not_found(KINDS[kind], name))
        assert f"pip install {KINDS[kind].provider[name]}" in text
        assert "installed: none" in text

    def test_a_misspelt_group_of_another_package_is_named(self, site):
        site.install("odd", entry_points={"tenonry.stat_loggerz": {"mine": "odd:Mine"}})
        text = str(not_found(LOGGERS, "mine"))
        assert "odd 1.0 names it in the group 'tenonry.stat_loggerz'" in text
        assert "write 'tenonry.stat_loggers'" in text

    def test_says_what_can_be_typed_instead(self, acme):
        assert "give an installed name, module:Class or path.py:Class" in str(
            not_found(LOGGERS, "zzz")
        )


class TestRequirements:
    """`Requires-Dist` against the running kernel."""

    @pytest.mark.parametrize(
        "text",
        ["tenonry", "tenonry>=0.1,<0.2", "tenonry[standard]>=0.0.1", "Tenonry>=0.1", "numpy<0",
         "tenonry<0; python_version < '3'", "tenonry<0; extra == 'old'"],
    )  # fmt: skip
    def test_what_fits_passes(self, site, text):
        site.install("fits", requires=[text])
        check_requirements("fits")

    @pytest.mark.parametrize(
        "text", ["tenonry>=99", "tenonry<0.1", "tenonry==0.0.3", "tenonry<0; python_version > '3'"]
    )
    def test_what_does_not_fit_is_refused_with_both_versions(self, site, text):
        site.install("old-one", version="0.9", requires=["numpy", text])
        with pytest.raises(PluginIncompatible) as caught:
            check_requirements("old-one")
        assert f"old-one 0.9 needs {text}, but this is tenonry {__version__}" in str(caught.value)
        assert "install a release of old-one made for it" in str(caught.value)

    def test_a_pre_release_of_the_kernel_counts(self, site, monkeypatch):
        monkeypatch.setattr(discovery, "__version__", "0.2.0.dev1")
        site.install("fits", requires=["tenonry>=0.1"])
        check_requirements("fits")

    def test_a_spelling_that_only_pip_understands_says_nothing(self, site):
        site.install("odd", requires=["tenonry @@@ odd"])
        check_requirements("odd")

    def test_each_is_read_once_while_nothing_is_installed(self, site, monkeypatch):
        """A start queries it for every plugin that it builds."""
        read = []

        def requires(distribution):
            read.append(distribution)
            return original(distribution)

        original = importlib.metadata.requires
        site.install("once", requires=["tenonry>=0.1"])
        monkeypatch.setattr(importlib.metadata, "requires", requires)
        for _ in range(3):
            check_requirements("once")
        assert read == ["once"]
        site.install("other")
        check_requirements("once")
        assert read == ["once", "once"]

    def test_a_refusal_is_repeated(self, site):
        site.install("old-one", requires=["tenonry>=99"])
        for _ in range(2):
            with pytest.raises(PluginIncompatible):
                check_requirements("old-one")

    def test_the_kernel_and_loose_files_need_nothing(self):
        check_requirements("tenonry")
        check_requirements("")


class TestDistributionOfModule:
    def test_by_the_name_of_the_module(self, site):
        site.install("some-thing", version="3.1", modules={"some_thing.py": ""})
        assert distribution_of_module("some_thing") == ("some-thing", "3.1")
        assert distribution_of_module("some_thing.inner") == ("some-thing", "3.1")

    def test_by_what_was_installed_under_another_name(self, site):
        site.install("brand", version="7", modules={"unlike.py": ""})
        assert distribution_of_module("unlike") == ("brand", "7")

    def test_a_loose_file_belongs_to_none(self):
        assert distribution_of_module("no_such_module_at_all") == ("", "")


class TestExcluded:
    """Safe mode and the search for a faulty plugin leave distributions out, of this process and its children."""

    def test_their_plugins_are_not_found(self, acme, monkeypatch):
        assert find_entry_point(LOGGERS, "acme") is not None
        monkeypatch.setenv(discovery.EXCLUDED, "acme-loggers,another")
        assert find_entry_point(LOGGERS, "acme") is None
        monkeypatch.delenv(discovery.EXCLUDED)
        assert find_entry_point(LOGGERS, "acme") is not None

    def test_a_class_is_refused_before_its_import(self, acme, monkeypatch):
        check_requirements("acme-loggers")
        monkeypatch.setenv(discovery.EXCLUDED, "acme-loggers")
        with pytest.raises(PluginIncompatible, match="acme-loggers is excluded, by the variable"):
            check_requirements("acme-loggers")

"""A start names what plugins' modules do while they are imported: distribution, file, line and remedy."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenonry_commands import import_watch
from tenonry_commands.arguments import add_engine_arguments
from tenonry_commands.import_watch import ImportWatch
from tenonry_testkit.plugins import TmpPlugins

LOGGER = """
from tenonry.interfaces.stat_logger import StatLogger
class Mine(StatLogger):
    def record(self, record): pass
"""
THREAD = """
import threading
event = threading.Event()
threading.Thread(target=event.wait, name="lost", daemon=True).start()
threading.Thread(target=int).start()
"""


@pytest.fixture
def site(tmp_path: Path, no_outside_settings: None) -> Iterator[TmpPlugins]:
    with TmpPlugins(tmp_path / "site", see_installed=True) as plugins:
        yield plugins


def install(site: TmpPlugins, source: str) -> None:
    site.distribution(
        "acme",
        "2.5",
        requires=["tenonry>=0.1,<0.2"],
        entry_points={"tenonry.stat_loggers": {"acme": "acme_logger:Mine"}},
        modules={"acme_logger": source, "tensorflow": ""},
    )


def parse(*words: str) -> None:
    """Read the flags of a start, for which its plugins are imported."""
    parser = argparse.ArgumentParser()
    add_engine_arguments(parser)
    parser.parse_args(["demo", "--stat-logger", "acme", *words])


@pytest.mark.parametrize(("source", "text", "line"), [
    ("import logging\nimport tensorflow\n" + LOGGER, "imports tensorflow with its module; import it inside", 3),
    ("print('hello')\n" + LOGGER, "writes to standard output when it is imported: hello; use a logger", 2),
    (THREAD + LOGGER, "leaves the thread 'lost' when it is imported; start threads in", 5),
    ("raise SystemExit(3)\n", "ends the process when it is imported: SystemExit: 3; raise", 2),
    ("import none_such\n", "ModuleNotFoundError: No module named 'none_such'; fix", 2),
    ("x = (\n", "SyntaxError", 2),
    ("raise OSError('no\\nchip')\n", "OSError: no chip; fix", 2),
])  # fmt: skip
def test_a_side_effect_is_named(
    source: str, text: str, line: int, site: TmpPlugins, caplog, capsys
):
    install(site, source)
    with caplog.at_level(logging.WARNING, "tenonry.plugins"):
        parse()
    (message,) = caplog.messages
    assert "SyntaxError" in source or text in message
    assert f"{site.folder / 'acme_logger.py'}:{line}: " in message
    assert message.startswith("acme 2.5: ")
    assert message.endswith("`tenonry doctor` checks all plugins")
    assert capsys.readouterr().out == ""
    if "event" in source:
        sys.modules["acme_logger"].event.set()


def test_a_hang_is_named_while_it_lasts(site: TmpPlugins, caplog, monkeypatch):
    """The module waits until the warning is there."""
    monkeypatch.setattr(import_watch, "SLOW_S", 0.05)
    named = threading.Event()
    monkeypatch.setattr("builtins.acme_named", named, raising=False)
    handler = logging.Handler()
    handler.emit = lambda record: named.set()  # type: ignore[method-assign]
    logger = logging.getLogger("tenonry.plugins")
    logger.addHandler(handler)
    install(site, "assert acme_named.wait(60)\n" + LOGGER)
    try:
        parse()
    finally:
        logger.removeHandler(handler)
    (message,) = caplog.messages
    assert message.startswith(f"acme 2.5: {site.folder / 'acme_logger.py'}:2: ")
    assert "has not finished its import after 0.1 s" in message


@pytest.mark.parametrize("source", ["import reader\n", "def read():\n    import reader\nread()\n"])
def test_the_plugin_that_imports_a_library_is_named(site: TmpPlugins, caplog, source: str):
    """The library imports a heavy module and prints; the plugin chose it."""
    install(site, source + LOGGER)
    site.module("reader", "import tensorflow\nprint('reading')\n")
    with caplog.at_level(logging.WARNING, "tenonry.plugins"):
        parse()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert all(line.startswith("acme 2.5: ") and "acme_logger.py:" in line for line in lines)


def test_a_module_that_is_only_looked_for_is_not_named(site: TmpPlugins, caplog):
    install(site, "import importlib.util\nimportlib.util.find_spec('tensorflow')\n" + LOGGER)
    with caplog.at_level(logging.WARNING, "tenonry.plugins"):
        parse()
    assert not caplog.records


def test_a_quiet_module_is_not_named(site: TmpPlugins, caplog):
    install(site, LOGGER)
    parse()
    assert caplog.messages == []


@pytest.mark.integration
def test_the_end_of_the_process_is_named(site: TmpPlugins, tmp_path: Path):
    install(site, "import os\nos._exit(3)\n")
    done = subprocess.run(
        [sys.executable, "-m", "tenonry", "generate", "Hello", "--stat-logger", "acme"],
        env={**os.environ, "PYTHONPATH": str(site.folder)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 3
    assert "acme_logger.py:3: ends the process when it is imported: os._exit(3)" in done.stderr


def test_everything_is_restored(capsys):
    before = sys.stdout, threading.Thread.start, os._exit, [*sys.meta_path]
    with ImportWatch() as watch:
        handler = logging.StreamHandler(sys.stdout)
        assert sys.stdout.isatty() is False
    assert before == (sys.stdout, threading.Thread.start, os._exit, [*sys.meta_path])
    handler.stream.write("after")
    assert capsys.readouterr().out == "after"
    assert watch.events == []

"""Requirements on a plugin class, checked before anything starts; errors name its file, its line and the remedy."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import pytest

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import ConfigError, PluginError, PluginFault, PluginIncompatible
from tenonry.plugin import Point
from tenonry.plugin.manager import PluginManager, check_capabilities, resolve_point

CONFIG = EngineConfig(model="m")

HEADER = """import functools
from abc import abstractmethod
from pydantic import BaseModel
from tenonry.errors import ConfigError
from tenonry.interfaces.stat_logger import StatLogger

def supplies_time(function):
    @functools.wraps(function)
    def wrapper(self, *args):
        return function(self, 0.0, *args)
    return wrapper

class Mine(StatLogger):
"""
ABLE = """
from tenonry.config import EngineConfig, fact
from tenonry_testkit.fakes import FakeWorker

class Able(FakeWorker):
    capabilities = frozenset(fact(field, "capability") for field in EngineConfig.model_fields.values())
"""
LINES = HEADER.count("\n")


def resolve(folder: Path, body: str, config: EngineConfig = CONFIG, **options: object) -> str:
    """Resolve the stat logger with this body; returns the path of its file."""
    path = folder / "mine.py"
    path.write_text(HEADER + "".join(f"    {line}\n" for line in body.splitlines()), "utf-8")
    choice = PluginChoice(name=f"{path}:Mine", options=options)
    PluginManager(discover=False).resolve("stat_logger", choice, config)
    return str(path)


RECORD = "def record(self, record): ...\n"


class TestWhatFails:
    @pytest.mark.parametrize(
        ("body", "line", "text"),
        [
            (
                RECORD + "Options = {'level': 1}",
                0,
                "has Options that are no pydantic model: {'level': 1}, in the class",
            ),
            (RECORD + "class Options: level = 1", 0, "write: class Options(PluginOptions)"),
            (
                RECORD + "def __init__(self): ...",
                2,
                "cannot be called as Plugin declares it; write: def __init__(self, context: ContextT)",
            ),
            (RECORD + "def __init__(self, context, path): ...", 2, "cannot be called as Plugin"),
            (RECORD + "def __init__(self, *, context): ...", 2, "cannot be called as Plugin"),
            (
                "def record(self): ...",
                1,
                "cannot be called as StatLogger declares it; write: def record(self, record: StatRecord)",
            ),
            ("def record(self, record, extra): ...", 1, "cannot be called as StatLogger"),
            (
                RECORD + "def shutdwon(self): ...",
                0,
                "has a member 'shutdwon', .* that is never called; did you mean 'shutdown'?",
            ),
            (RECORD + "intervall_s = 2.0", 0, "'intervall_s', .* did you mean 'interval_s'?"),
            (RECORD + "class Option(BaseModel): ...", 0, "'Option', .* did you mean 'Options'?"),
        ],
    )
    def test_it_is_named_with_its_file_and_line(self, tmp_path, body, line, text):
        with pytest.raises(PluginIncompatible) as caught:
            resolve(tmp_path, body)
        message = str(caught.value)
        assert f"stat logger '{tmp_path}/mine.py:Mine'" in message
        assert f"{tmp_path}/mine.py:{LINES + line}" in message
        pattern = re.escape(text).replace(r"\.\*", ".*")
        assert re.search(pattern, message), message

    @pytest.mark.parametrize(
        "body",
        [
            RECORD + "def __init__(self, context, extra=None): ...",
            RECORD + "def __init__(self, *args, **options): ...",
            "def record(self, anything): ...",
            "record = lambda self, *records: None",
            RECORD + "def _shutdwon(self): ...",
            RECORD + "def close_all(self): ...",
            RECORD + "SHUTDOWNS = 3",
            RECORD + "def shutdown(self): ...\ndef shutdowns(self): ...",
            RECORD + "def log(self): self.records(1)\ndef records(self, level): ...",
            "@supplies_time\ndef record(self, now, record): ...",
        ],
    )
    def test_what_can_be_called_passes(self, tmp_path, body):
        assert resolve(tmp_path, body)

    def test_a_class_between_the_interface_and_the_plugin_counts(self, tmp_path):
        """As `choose` of the first-party base class of schedulers does."""
        path = tmp_path / "mine.py"
        source = HEADER.replace("Mine", "Base") + "    def record(self, record): ...\n"
        source += "    @abstractmethod\n    def choose(self, step): ...\n"
        source += "class Mine(Base):\n    def choose(self): ...\n"
        path.write_text(source, "utf-8")
        with pytest.raises(
            PluginIncompatible,
            match=rf"choose\(self\) at .*mine\.py:{LINES + 5}, which cannot be called as Base declares it; write: def "
            r"choose\(self, step\)",
        ):
            PluginManager(discover=False).resolve(
                "stat_logger", PluginChoice(name=f"{path}:Mine"), CONFIG
            )

    @pytest.mark.parametrize(
        "source",
        [
            """import threading
class Mine(StatLogger, threading.Thread):
    def __init__(self, context): ...
    def record(self, record): ...
""",
            """from typing import Protocol
class Other(Protocol):
    x: int
class Mine(StatLogger, Other):
    def record(self, record): ...
""",
            """class Base(StatLogger):
    def record(self, record): ...
    def helper(self): ...
class Mine(Base):
    def helper(self, more): ...
""",
        ],
        ids=["mixin", "protocol", "helper of its own base"],
    )
    def test_classes_that_the_kernel_does_not_call_ask_for_nothing(self, tmp_path, source):
        path = tmp_path / "mine.py"
        path.write_text(HEADER.partition("class Mine")[0] + source, "utf-8")
        choice = PluginChoice(name=f"{path}:Mine")
        assert PluginManager(discover=False).resolve("stat_logger", choice, CONFIG)


class TestTheCheckOfAPlugin:
    BODY = RECORD + (
        "@classmethod\ndef check(cls, config, options):\n"
        "    if config.max_num_seqs > 8:\n        raise ConfigError('at most 8')\n"
        "    if config.max_num_seqs < 8:\n        raise KeyError('size')\n"
    )

    def test_it_sees_the_configuration_and_may_refuse_it(self, tmp_path):
        assert resolve(tmp_path, self.BODY, EngineConfig(model="m", max_num_seqs=8))
        with pytest.raises(ConfigError, match=r"^at most 8$"):
            resolve(tmp_path, self.BODY, EngineConfig(model="m", max_num_seqs=9))

    def test_what_it_raises_by_mistake_names_the_plugin(self, tmp_path):
        with pytest.raises(
            PluginFault, match=r"mine\.py:Mine .* failed in check: KeyError: 'size'"
        ):
            resolve(tmp_path, self.BODY, EngineConfig(model="m", max_num_seqs=7))


class Sampler(ABC):
    interface_version = 1
    Options: ClassVar = None

    @abstractmethod
    def sample(self, logits): ...


class TestOpenedPoints:
    """An owner's point has the checks of the kernel's kinds."""

    POINT = Point("acme.samplers", Sampler, {"slow": "acme-slow"})

    @pytest.mark.parametrize(
        ("source", "text"),
        [
            ("class Mine: ...", r"is not a subclass of .*Sampler; it stands at .*mine\.py:3"),
            ("class Mine(Sampler): ...", r"does not implement sample of Sampler; .*mine\.py:3"),
            (
                "class Mine(Sampler):\n    interface_version = 3\n    def sample(self, logits): ...",
                "speaks version 3 of the sampler interface",
            ),
            (
                "class Mine(Sampler):\n    def sample(self): ...",
                r"sample\(self\) at .* cannot be called as Sampler declares it",
            ),
            (
                "class Mine(Sampler):\n    def sample(self, logits): ...\n    class Options(PluginOptions): ...",
                "unknown setting 'level'; known options: none",
            ),
        ],
    )
    def test_a_wrong_class_is_refused(self, tmp_path, monkeypatch, source, text):
        monkeypatch.setattr(Sampler, "Options", EngineConfig)
        path = tmp_path / "mine.py"
        imports = "from tenonry.interfaces.plugin import PluginOptions\n"
        path.write_text(f"from {__name__} import Sampler\n{imports}{source}\n", "utf-8")
        choice = PluginChoice(name=f"{path}:Mine", options={"level": 1})
        with pytest.raises(PluginError, match=text):
            resolve_point(self.POINT, choice)

    def test_an_unknown_name_says_what_to_install(self):
        with pytest.raises(
            PluginError,
            match=r"no sampler is called 'slow'; installed: none; it comes with: pip install acme-slow",
        ):
            resolve_point(self.POINT, "slow")

    @pytest.mark.parametrize(
        ("group", "kind"), [("acme.samplers", "sampler"), ("acme.policies", "policy")]
    )
    def test_the_kind_is_the_singular_of_the_group(self, group, kind):
        assert Point(group).kind == kind
        assert Point(group, kind="pane").kind == "pane"


class TestSettings:
    """A setting that the chosen worker would ignore is rejected by name at the start (WK-15)."""

    VALUES: ClassVar = {"kv_connector": "host", "max_images": 1, "max_loras": 1}

    def check(self, worker: PluginChoice, config: EngineConfig) -> None:
        record = PluginManager(discover=False).resolve("worker", worker, config)
        check_capabilities(record, {}, config)

    @pytest.mark.parametrize("setting", VALUES)
    def test_one_that_the_worker_does_not_know(self, setting):
        config = EngineConfig(model="m", **{setting: self.VALUES[setting]})
        worker = PluginChoice(name="tenonry_testkit.kernel.faulty:StillWorker")
        text = rf"{setting}=.*: worker '{worker.name}' .*lacks the capability '\w+'; leave it out"
        with pytest.raises(ConfigError, match=text):
            self.check(worker, config)

    def test_one_that_is_turned_off_needs_no_capability(self):
        config = EngineConfig(model="m", kv_connector=None, max_loras=0)
        worker = PluginChoice(name="tenonry_testkit.kernel.faulty:StillWorker")
        self.check(worker, config)

    def test_all_that_a_worker_declares_are_taken(self, tmp_path):
        path = tmp_path / "able.py"
        path.write_text(ABLE, "utf-8")
        config = EngineConfig(model="m", **self.VALUES)
        self.check(PluginChoice(name=f"{path}:Able"), config)

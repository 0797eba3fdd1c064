"""Default behaviour of every interface, so that an author writes only the essential methods."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tenonry.errors import RequestError, Unsupported
from tenonry.info import EngineInfo, WorkerFacts
from tenonry.interfaces.executor import Executor, ExecutorContext
from tenonry.interfaces.io_processor import IOProcessor, IOProcessorContext, ProcessedPrompt
from tenonry.interfaces.kv_connector import KVConnector, KVConnectorContext, KVConnectorRole
from tenonry.interfaces.plugin import NoOptions, Plugin, PluginOptions
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.interfaces.worker import Worker, WorkerContext
from tenonry.outputs import RequestOutput
from tenonry.plugin import hookspecs
from tenonry.plugin.checks import supported_versions
from tenonry.plugin.kinds import HOOK_MODULES, KINDS, POINTS
from tenonry.request import Request
from tenonry.stats import StatRecord
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.kernel.engine import fake_config
from tenonry_testkit.kernel.engine import request as make_request

CONFIG, MODEL = fake_config(tensor_parallel_size=2, pipeline_parallel_size=2), fake_model()
MOST_METHODS = 10


def complete(interface: type, **members: Any) -> Any:
    """A class with a body for each abstract method, as an author would start."""
    missing = {
        name: lambda self, *args, **kwargs: None
        for name in getattr(interface, "__abstractmethods__", ())
    }
    return type("Complete", (interface,), {**missing, **members})


class TestEveryKind:
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_interface_is_a_plugin_with_a_contract(self, kind):
        interface = KINDS[kind].load_base()
        assert issubclass(interface, Plugin)
        assert len(inspect.getdoc(interface) or "") > 50
        assert interface.interface_version == max(supported_versions(interface))

    @pytest.mark.parametrize("kind", KINDS)
    def test_an_author_writes_at_most_ten_methods(self, kind):
        interface = KINDS[kind].load_base()
        assert len(getattr(interface, "__abstractmethods__", ())) <= MOST_METHODS

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_public_method_is_documented(self, kind):
        interface = KINDS[kind].load_base()
        for name, member in vars(interface).items():
            if not name.startswith("_") and inspect.isfunction(member):
                assert member.__doc__, f"{interface.__name__}.{name}"

    def test_groups_are_distinct(self):
        points = [*KINDS.values(), HOOK_MODULES, POINTS]
        assert len({point.group for point in points}) == len(points)
        assert all(point.group.startswith("tenonry.") for point in points)

    def test_options_are_frozen_and_closed(self):
        class Options(PluginOptions):
            level: int = 1

        cls = type("Mine", (Plugin,), {"Options": Options})
        assert cls.Options.model_validate({"level": "2"}) == Options(level=2)
        with pytest.raises(ValidationError):
            cls.Options.model_validate({"levl": 1})
        with pytest.raises(ValidationError):
            Options().level = 3
        assert Plugin.Options() == NoOptions()


class TestHookspecs:
    def test_every_kind_has_a_hook_and_every_hook_has_a_manual(self):
        hooks = {
            name: member for name, member in vars(hookspecs).items() if name.startswith("tenonry_")
        }
        assert {kind.hook for kind in KINDS.values()} <= set(hooks)
        assert set(hooks) == {kind.hook for kind in KINDS.values()} | {
            "tenonry_resolve_model", "tenonry_configured", "tenonry_engine_ready",
        }  # fmt: skip
        for name, hook in hooks.items():
            assert inspect.getdoc(hook), name


class TestWorker:
    def worker(self, **members: Any) -> Worker:
        made: Worker = complete(Worker, **members)(
            WorkerContext(CONFIG, MODEL, max_model_len=8, rank=3)
        )
        return made

    def test_what_it_says_of_a_model_it_does_not_look_at(self):
        assert self.worker().examine() == WorkerFacts(architecture=MODEL.architecture)

    def test_its_place_among_the_ranks(self):
        context = self.worker().context
        assert context.config.world_size == 4
        assert context.rank == 3

    def test_it_promises_nothing_by_itself(self):
        worker = self.worker()
        assert worker.steps_in_flight == 1
        assert worker.capabilities == frozenset()
        assert worker.rpc_methods == frozenset()
        worker.warm_up()
        worker.check_health()
        worker.shutdown()
        assert worker.resolved_plugins() == {}

    def test_only_methods_of_its_list_can_be_called(self):
        """Q10."""
        worker = self.worker(rpc_methods=frozenset({"echo"}), echo=lambda self, *args: args)
        assert worker.call("echo", [1, 2]) == (1, 2)
        for name in ("load", "shutdown", "__class__", "context"):
            with pytest.raises(
                Unsupported,
                match=rf"worker Complete does not support '{name}'; it supports \['echo'\]",
            ):
                worker.call(name)
        with pytest.raises(Unsupported, match="it supports no calls"):
            self.worker().call("echo")


class TestExecutor:
    def test_its_defaults(self):
        worker_class = complete(Worker, capabilities=frozenset({"profile"}))
        executor: Executor = complete(Executor)(
            ExecutorContext(CONFIG, MODEL, max_model_len=8, worker_class=worker_class)
        )
        assert executor.max_concurrent_batches == 1
        assert executor.feeds_back_tokens is True
        assert executor.capabilities == {"profile"}
        executor.on_failure(lambda reason: None)
        executor.check_health()
        assert executor.resolved_plugins() == {}


class TestIOProcessor:
    def processor(self, **members: Any) -> IOProcessor:
        made: IOProcessor = complete(IOProcessor, **members)(IOProcessorContext(CONFIG, MODEL))
        return made

    def test_without_a_template_there_is_no_chat(self):
        with pytest.raises(RequestError, match="cannot render chats; use a plain prompt") as caught:
            self.processor().render_chat([])
        assert caught.value.param == "messages"

    def test_without_a_tokenizer_there_is_none(self):
        with pytest.raises(ValueError, match="Complete has no tokenizer"):
            self.processor().get_tokenizer()

    def test_outputs_pass_and_token_texts_come_one_by_one(self):
        processor = self.processor(decode=lambda self, ids, **_: "".join(chr(i) for i in ids))
        output = RequestOutput("r", None, [], [], finished=True)
        assert processor.post_process(output) is output
        assert list(processor.token_texts([97, 98])) == ["a", "b"]
        processor.shutdown()

    def test_token_bytes_replace_what_has_no_utf8_form(self):
        processor = self.processor(decode=lambda self, ids, **_: "".join(chr(i) for i in ids))
        assert processor.token_bytes([0x61, 0xD800, 0xE9]) == [b"a", b"?", "é".encode()]

    def test_a_prompt_has_ids_and_may_have_more(self):
        prompt = ProcessedPrompt(token_ids=np.array([1], np.int32))
        assert prompt.text is None
        assert prompt.bad_words == ()
        assert prompt.features is None


class TestKVConnector:
    """KV-1: an author overrides the essential methods; the rest are no-ops."""

    def test_every_method_has_a_default_that_does_nothing(self):
        context = KVConnectorContext(CONFIG, MODEL, KVConnectorRole.SCHEDULER, engine_id="x_dp0")
        connector = complete(KVConnector)(context)
        source = Request(make_request(1), 0, 0.0, 64)
        assert connector.match(source, 0) == (0, False)
        assert connector.allocated(source, [1], 0) is None
        assert connector.build_metadata() is None
        assert connector.finished(source, [1]) == (False, None)
        assert connector.reset() is True
        assert connector.numbers() == {}
        connector.name_blocks(lambda request, count: [b"name"] * count)
        assert connector.digests(source, 2) == [b"name"] * 2
        assert connector.bind(None) is None
        assert connector.load(None) is None
        assert connector.save(None) is None
        assert [list(part) for part in connector.poll()] == [[], []]
        assert connector.shutdown() is None


class TestStatLogger:
    """SL-1."""

    def test_only_record_must_be_written(self):
        heard = []
        logger: StatLogger = complete(StatLogger, record=lambda self, record: heard.append(record))(
            StatLoggerContext(CONFIG)
        )
        info = EngineInfo(
            model="m", served_model_name="m", max_model_len=8, num_gpu_blocks=1, block_size=16
        )
        logger.log_engine_initialized(info)
        logger.log()
        logger.record_sleep_state(True, 1)
        logger.record_rejection("queue_full")
        logger.record(StatRecord(engine_index=0, time=0.0))
        logger.shutdown()
        assert len(heard) == 1
        assert logger.interval_s == 5.0


@pytest.mark.integration
class TestLightness:
    """Importing the kernel is cheap, and loads nothing heavy."""

    def loaded_by(self, statement: str) -> set[str]:
        code = f"import sys\n{statement}\nprint(*sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        return set(done.stdout.split())

    def test_the_package_loads_its_names_on_first_use(self):
        loaded = self.loaded_by("import tenonry")
        assert not {"numpy", "pydantic", "zmq", "msgspec", "pluggy", "tenonry.config"} & loaded
        assert "tenonry.sampling_params" in self.loaded_by("from tenonry import SamplingParams")

    @pytest.mark.parametrize(
        ("names", "heavy"),
        [
            ("SamplingParams, RequestOutput", {"pydantic", "asyncio"}),
            ("EngineConfig", {"asyncio"}),
            ("LLM, AsyncLLM", {"pydantic"}),
        ],
    )
    def test_names_load_no_library_that_only_engines_use(self, names, heavy):
        loaded = self.loaded_by(f"from tenonry import {names}")
        assert not (heavy | {"numpy", "zmq", "psutil", "stevedore", "pluggy", "packaging"}) & loaded

    def test_nothing_loads_torch(self):
        statement = (
            "import pkgutil, importlib, tenonry\n"
            "for module in pkgutil.walk_packages(tenonry.__path__, 'tenonry.'):\n"
            "    if not module.name.endswith('__main__'):\n"
            "        importlib.import_module(module.name)"
        )
        loaded = self.loaded_by(statement)
        assert not {"torch", "transformers", "fastapi", "multiprocessing.context"} & loaded - {
            "multiprocessing.context"
        }
        assert not {name for name in loaded if name.startswith("tenonry_")}

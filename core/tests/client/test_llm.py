"""LLM: a blocking batch, in this process, without children or signal handlers (EC-8, AF-3)."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tenonry import LLM, AsyncLLM, SamplingParams
from tenonry.errors import ConfigError, EngineDeadError, ModelError, PluginFault, RequestError
from tenonry.outputs import RequestOutput
from tenonry.sampling_params import OutputKind
from tenonry_testkit.fakes import ByteIOProcessor, RecordingStatLogger
from tenonry_testkit.kernel.engine import fake_config
from tenonry_testkit.kernel.faulty import CALLS
from tenonry_testkit.kernel.plugins import raising_hooks
from tenonry_testkit.kernel.served import served_config
from tenonry_testkit.plugins import fake_model_installed
from tenonry_testkit.served import tokens

GREEDY = SamplingParams(temperature=0, max_tokens=8, detokenize=False)
Make = Callable[..., LLM]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[LLM] = []

    def build(**values: Any) -> LLM:
        made.append(
            LLM(config=served_config(**{"worker": "tenonry_testkit.fakes:FakeWorker", **values}))
        )
        return made[-1]

    with fake_model_installed(tmp_path / "model"):
        yield build
    for llm in made:
        llm.shutdown()


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


class TestGenerate:
    def test_a_batch_comes_back_in_order(self, make):
        prompts = [[i, i + 1] for i in range(100)]
        outputs = make().generate([{"prompt_token_ids": prompt} for prompt in prompts], GREEDY)
        assert ids(outputs) == [tokens(prompt, GREEDY) for prompt in prompts]
        assert all(
            output.finished and output.outputs[0].finish_reason == "length" for output in outputs
        )

    @pytest.mark.parametrize(
        ("prompts", "count"),
        [
            ("hi", 1),
            ({"prompt": "hi"}, 1),
            ([104, 105], 1),
            (["hi", "ho"], 2),
            ([[104, 105], "ho"], 2),
            ([], 0),
            (("hi",), 1),
        ],
    )
    def test_prompts_of_every_form(self, make, prompts, count):
        outputs = make().generate(prompts, GREEDY)
        assert len(outputs) == count
        if count:
            assert outputs[0].outputs[0].token_ids == tokens("hi", GREEDY)

    def test_text_comes_out(self, make):
        (output,) = make().generate("hi", SamplingParams(temperature=0, max_tokens=20))
        assert output.prompt == "hi"
        assert isinstance(output.outputs[0].text, str)
        assert len(output.outputs[0].token_ids) == 20

    def test_parameters_one_for_all_or_one_each(self, make):
        llm = make()
        longer = SamplingParams(temperature=0, max_tokens=12, detokenize=False)
        assert [len(part) for part in ids(llm.generate([[1], [2]], [GREEDY, longer]))] == [8, 12]
        with pytest.raises(
            ConfigError, match="1 sampling params for 2 prompts; give one, or one each"
        ):
            llm.generate([[1], [2]], [GREEDY])
        with pytest.raises(ConfigError, match="1 priorities for 2 prompts"):
            llm.generate([[1], [2]], GREEDY, priority=[1])

    def test_without_parameters_the_models_own_count(self, make):
        llm = make()
        llm.model = llm.model.__class__(**{**{f: getattr(llm.model, f) for f in llm.model.__struct_fields__},
                                           "default_sampling": {"max_tokens": 3, "temperature": 0.0}})  # fmt: skip
        assert len(ids(llm.generate([[1]]))[0]) == 3

    def test_several_completions(self, make):
        sampling = SamplingParams(n=3, seed=7, max_tokens=5, detokenize=False)
        (output,) = make().generate([[1]], sampling)
        seeded = [SamplingParams(seed=7 + i, max_tokens=5, detokenize=False) for i in range(3)]
        assert [completion.token_ids for completion in output.outputs] == [
            tokens([1], each) for each in seeded
        ]

    def test_several_calls_in_a_row(self, make):
        llm = make(
            executor={
                "name": "tenonry_testkit.fakes:InstantExecutor",
                "options": {"depth": 3, "late": True},
            }
        )
        for i in range(5):
            assert ids(llm.generate([[i], [i + 1]], GREEDY)) == [
                tokens([i], GREEDY),
                tokens([i + 1], GREEDY),
            ]
            assert not llm.engine_core.has_work()

    def test_priority_and_tags_reach_the_scheduler(self, make):
        llm = make()
        seen: list[Any] = []
        add = llm.engine_core.scheduler.add_request
        llm.engine_core.scheduler.add_request = lambda made: (seen.append(made), add(made))[1]  # type: ignore[method-assign]
        llm.generate([[1], [2]], GREEDY, priority=[5, 6], tags={"tenant": "a"})
        assert [(made.priority, made.tags) for made in seen] == [
            (5, {"tenant": "a"}),
            (6, {"tenant": "a"}),
        ]

    def test_a_stop_string_ends_a_request_and_frees_the_engine(self, make):
        llm = make()
        (whole,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=60))
        stop = whole.outputs[0].text[3:5]
        (output,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=60, stop=stop))
        assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)
        assert llm.engine_core.request_counts() == (0, 0)

    def test_a_chat_and_chats(self, make):
        llm = make()
        chat = [{"role": "user", "content": "hi"}]
        (one,) = llm.chat(chat, GREEDY)
        assert one.prompt == "user: hi\nassistant:"
        assert len(llm.chat([chat, chat], GREEDY)) == 2
        assert llm.chat([], GREEDY) == []

    def test_progress_is_shown_if_wanted(self, make, capsys):
        llm = make()
        llm.generate([[1], [2]], GREEDY, use_tqdm=True)
        assert "2/2 requests" in capsys.readouterr().err
        llm.generate([[1]], GREEDY)  # no terminal here
        assert capsys.readouterr().err == ""


class ShoutingIO(ByteIOProcessor):
    """Changes every text on its way out; raises for a prompt with an x."""

    def post_process(self, output: RequestOutput) -> RequestOutput:
        if "x" in (output.prompt or ""):
            raise ValueError("on purpose")
        outputs = [msgspec.structs.replace(each, text=f"<{each.text}>") for each in output.outputs]
        return msgspec.structs.replace(output, outputs=outputs)


class TestPostProcess:
    """IOProcessor.post_process is the last to see an output, here as in AsyncLLM."""

    SAMPLING = SamplingParams(temperature=0, max_tokens=8, output_kind=OutputKind.FINAL)

    def test_the_text_is_the_same_offline_and_online(self, make, monkeypatch):
        monkeypatch.setattr(ByteIOProcessor, "post_process", ShoutingIO.post_process)
        llm = make()
        (offline,) = llm.generate("hello", self.SAMPLING)
        engine = AsyncLLM(llm.config)

        async def last() -> RequestOutput:
            return [output async for output in engine.generate("hello", self.SAMPLING, "r")][-1]

        online = asyncio.run(last())
        engine.shutdown()
        assert offline.outputs[0].text.startswith("<")
        assert online.outputs[0].text == offline.outputs[0].text

    def test_one_that_raises_fails_its_request_alone(self, make, monkeypatch):
        monkeypatch.setattr(ByteIOProcessor, "post_process", ShoutingIO.post_process)
        bad, good = make().generate(["x", "y"], self.SAMPLING)
        assert bad.error is not None
        assert re.match("request 0 failed: plugin .* in post_process: ValueError", bad.error)
        assert (bad.outputs[0].finish_reason, bad.outputs[0].text) == ("error", "")
        assert bad.outputs[0].token_ids == []  # what it may have had to remove is not shown
        assert good.error is None
        assert good.outputs[0].text.startswith("<")


class TestFaults:
    @pytest.mark.parametrize(
        ("sampling", "fields", "text"),
        [
            ({"max_tokens": 1}, {}, "sampling_params={'max_tokens': 1} must be a SamplingParams"),
            ([3], {}, "sampling_params=3 must be a SamplingParams"),
            (GREEDY, {"priority": ["high"]}, "priority='high' has the wrong type"),
            (GREEDY, {"tags": "a"}, "tags='a' has the wrong type"),
        ],
    )
    def test_a_wrong_type_names_field_value_and_type(self, make, sampling, fields, text):
        with pytest.raises(RequestError, match=text):
            make().generate([[1]], sampling, **fields)

    def test_a_bad_prompt_is_refused_before_anything_runs(self, make):
        llm = make()
        with pytest.raises(RequestError, match="the prompt is empty"):
            llm.generate([[1], []], GREEDY)
        assert (len(llm._outputs), llm.engine_core.has_work()) == (0, False)

    def test_one_that_fails_is_an_error_output(self, make):
        llm = make(
            worker={"name": "tenonry_testkit.fakes:FakeWorker", "options": {"fail_row_token": 7}}
        )
        bad, good = llm.generate([[7], [8]], GREEDY)
        assert bad.outputs[0].finish_reason == "error"
        assert "NaN logits" in str(bad.error)
        assert (good.error, good.outputs[0].token_ids) == (None, tokens([8], GREEDY))

    def test_one_that_the_engine_refuses_is_an_error_output(self, make):
        llm = make(
            scheduler={
                "name": "tenonry_testkit.kernel.faulty:FaultyScheduler",
                "options": {"refuse": "1"},
            }
        )
        good, bad = llm.generate([[1], [2]], GREEDY)
        assert good.error is None
        assert "this one never" in str(bad.error)

    def test_a_dead_engine_says_so_from_then_on(self, make):
        """EC-8: the first call has the cause, later ones the news."""
        llm = make(
            worker={"name": "tenonry_testkit.fakes:FakeWorker", "options": {"fail_step_token": 7}}
        )
        with pytest.raises(PluginFault, match="told to fail on token 7"):
            llm.generate([[7], [8]], GREEDY)
        with pytest.raises(
            EngineDeadError, match=r"the engine is gone: plugin .*told to fail on token 7"
        ):
            llm.generate([[8]], GREEDY)

    def test_a_dead_engine_is_still_shut_down(self, make):
        llm = make(
            executor="tenonry_testkit.kernel.faulty:FaultyExecutor", stat_loggers=["tenonry_testkit.fakes:RecordingStatLogger"],  # noqa: E501
            worker={"name": "tenonry_testkit.fakes:FakeWorker", "options": {"fail_step_token": 7}},
        )  # fmt: skip
        with pytest.raises(PluginFault):
            llm.generate([[7]], GREEDY)
        CALLS.clear()
        llm.shutdown()
        assert CALLS == ["FaultyExecutor.shutdown"]
        assert not [thread for thread in threading.enumerate() if thread.name == "tenonry-stats"]

    def test_an_interrupt_leaves_an_engine_that_works(self, make, monkeypatch):
        llm = make()
        worker = llm.engine_core.executor.worker
        steps = []

        def interrupted(output: Any) -> None:
            steps.append(output)
            if len(steps) == 3:
                raise KeyboardInterrupt

        worker.on_step = interrupted
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[1], [2]], GREEDY)
        worker.on_step = None
        assert len(llm._outputs) == 0
        assert llm.engine_core.request_counts() == (0, 0)

    def test_a_detokenizer_that_cannot_be_made_leaves_nothing_open(self, make, monkeypatch):
        llm = make()
        make_one = llm.io_processor.make_detokenizer
        calls = []

        def second_fails(*args: Any) -> Any:
            calls.append(args)
            if len(calls) == 2:
                raise ValueError("on purpose")
            return make_one(*args)

        monkeypatch.setattr(llm.io_processor, "make_detokenizer", second_fails)
        with pytest.raises(Exception, match="on purpose"):
            llm.generate(["a", "b"], SamplingParams(max_tokens=2))
        assert len(llm._outputs) == 0
        assert len(llm.generate(["a"], GREEDY)) == 1


class TestLife:
    def test_no_children_and_no_signal_handlers(self, make):
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        llm = make()
        llm.generate([[1]], GREEDY)
        assert psutil.Process().children() == []
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers

    def test_it_is_a_context_manager_and_shuts_down_once(self, make):
        CALLS.clear()
        with make(executor="tenonry_testkit.kernel.faulty:FaultyExecutor") as llm:
            llm.generate([[1]], GREEDY)
        llm.shutdown()
        assert CALLS.count("FaultyExecutor.shutdown") == 1
        with pytest.raises(EngineDeadError, match="it was shut down"):
            llm.generate([[1]], GREEDY)

    def test_it_can_be_collected(self, make):
        llm = LLM(config=served_config(worker="tenonry_testkit.fakes:FakeWorker"))
        reference = weakref.ref(llm)
        del llm
        gc.collect()
        assert reference() is None

    def test_settings_may_be_keyword_arguments(self, make):
        config = fake_config().model_dump(exclude_defaults=True, exclude={"model"})
        with LLM(
            "fake", **{**config, "plugins": {"allow": ["fake-model"]}, "max_num_seqs": 2}
        ) as llm:
            assert llm.config.max_num_seqs == 2
            assert ids(llm.generate([[1]], GREEDY)) == [tokens([1], GREEDY)]
            assert llm.info.max_model_len == 64

    def test_a_context_that_the_model_was_not_made_for_is_refused(self, make):
        with pytest.raises(
            ConfigError, match=r"max_model_len=1000000 is above the \d+ tokens that the model fake "
        ):
            make(max_model_len=1_000_000)

    def test_settings_and_a_configuration_exclude_each_other(self):
        for arguments in ({"model": "x"}, {"seed": 1}):
            with pytest.raises(ConfigError, match="either config= or single settings"):
                LLM(config=fake_config(), **arguments)
        with pytest.raises(
            ConfigError, match="unknown setting 'max_num_seq'; did you mean 'max_num_seqs'"
        ):
            LLM("fake", max_num_seq=1)
        with pytest.raises(ConfigError, match="LLM runs one engine"):
            LLM("fake", data_parallel_size=2)

    def test_a_start_that_fails_ends_the_parts_that_were_there(self, make, monkeypatch):
        ended: list[object] = []
        for cls in (ByteIOProcessor, RecordingStatLogger):
            monkeypatch.setattr(cls, "shutdown", lambda self: ended.append(type(self)))
        with pytest.raises(ModelError, match="no weights"):
            make(
                worker={
                    "name": "tenonry_testkit.fakes:FakeWorker",
                    "options": {"fail_load": "no weights"},
                },
                stat_loggers=["tenonry_testkit.fakes:RecordingStatLogger"],
            )
        assert ended == [RecordingStatLogger, ByteIOProcessor]

    def test_a_hook_that_refuses_the_engine_stops_it(self, tmp_path):
        with fake_model_installed(tmp_path / "model") as site:
            site.distribution(
                "late", entry_points={"tenonry.plugins": {"late": "late_llm_hooks"}},
                modules={"late_llm_hooks": raising_hooks("tenonry_engine_ready", "info")},
            )  # fmt: skip
            CALLS.clear()
            with pytest.raises(PluginFault, match="plugin late"):
                LLM(
                    config=served_config(
                        plugins={"allow": ["fake-model", "late"]},
                        executor="tenonry_testkit.kernel.faulty:FaultyExecutor",
                    )
                )
        assert "FaultyExecutor.shutdown" in CALLS


class TestTheRest:
    def test_calls_to_workers_and_caches(self, make):
        llm = make()
        assert llm.collective_rpc("echo", ["x"]) == [[0, "x"]]
        assert llm.reset_prefix_cache() is True

    def test_the_tokenizer(self, make):
        """AF-3."""
        with pytest.raises(ValueError, match="ByteIOProcessor has no tokenizer"):
            make().get_tokenizer()
        for values in ({"io_processor": None}, {"skip_tokenizer_init": True}):
            llm = make(**values)
            with pytest.raises(ValueError, match="no tokenizer is loaded"):
                llm.get_tokenizer()
            with pytest.raises(ConfigError, match="chat needs an IO processor"):
                llm.chat([{"role": "user", "content": "hi"}])
            assert ids(llm.generate([[1]], GREEDY)) == [tokens([1], GREEDY)]

    def test_stat_loggers_hear_everything(self, make):
        llm = make(stat_loggers=["tenonry_testkit.fakes:RecordingStatLogger"], log_stats=False)
        llm.generate([[1], [2, 3]], GREEDY, tags={"a": 1.0})
        llm.shutdown()
        (heard,) = llm._stats.loggers.values()
        assert isinstance(heard, RecordingStatLogger)
        assert heard.infos == [llm.info]
        finished = [each for record in heard.records for each in record.iteration.finished]
        assert sorted(each.num_prompt_tokens for each in finished) == [1, 2]
        assert sum(record.iteration.num_generation_tokens for record in heard.records) == 16
        assert any(record.scheduler for record in heard.records)

"""LLM: a blocking batch (EC-8)."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from tenonry import AsyncLLM, SamplingParams
from tenonry.errors import (
    ConfigError,
    EngineDeadError,
    PluginFault,
    PluginNotFound,
    RequestError,
    Unsupported,
)
from tenonry.outputs import RequestOutput
from tenonry.sampling_params import OutputKind
from tenonry_testkit.fakes import ByteIOProcessor
from tenonry_testkit.kernel.faulty import CALLS
from tenonry_testkit.plugins import TmpPlugins
from tenonry_testkit.served import tokens

GREEDY = SamplingParams(temperature=0, max_tokens=8, detokenize=False)


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


class TestGenerate:
    def test_a_batch_comes_back_in_order(self, make_llm):
        prompts = [[i, i + 1] for i in range(100)]
        outputs = make_llm().generate([{"prompt_token_ids": prompt} for prompt in prompts], GREEDY)
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
    def test_prompts_of_every_form(self, make_llm, prompts, count):
        outputs = make_llm().generate(prompts, GREEDY)
        assert len(outputs) == count
        if count:
            assert outputs[0].outputs[0].token_ids == tokens("hi", GREEDY)

    def test_text_comes_out(self, make_llm):
        (output,) = make_llm().generate("hi", SamplingParams(temperature=0, max_tokens=20))
        assert output.prompt == "hi"
        assert isinstance(output.outputs[0].text, str)
        assert len(output.outputs[0].token_ids) == 20

    def test_parameters_one_for_all_or_one_each(self, make_llm):
        llm = make_llm()
        longer = SamplingParams(temperature=0, max_tokens=12, detokenize=False)
        assert [len(part) for part in ids(llm.generate([[1], [2]], [GREEDY, longer]))] == [8, 12]
        with pytest.raises(
            ConfigError, match="sampling_params has 1 values for 2 prompts; give one, or one each"
        ):
            llm.generate([[1], [2]], [GREEDY])
        with pytest.raises(ConfigError, match="priority has 1 values for 2 prompts"):
            llm.generate([[1], [2]], GREEDY, priority=[1])

    def test_without_parameters_the_models_own_count(self, make_llm):
        llm = make_llm()
        llm.model = llm.model.__class__(**{**{f: getattr(llm.model, f) for f in llm.model.__struct_fields__},
                                           "default_sampling": {"max_tokens": 3, "temperature": 0.0}})  # fmt: skip
        assert len(ids(llm.generate([[1]]))[0]) == 3

    def test_several_completions(self, make_llm):
        sampling = SamplingParams(n=3, seed=7, max_tokens=5, detokenize=False)
        (output,) = make_llm().generate([[1]], sampling)
        seeded = [SamplingParams(seed=7 + i, max_tokens=5, detokenize=False) for i in range(3)]
        assert [completion.token_ids for completion in output.outputs] == [
            tokens([1], each) for each in seeded
        ]

    def test_several_calls_in_a_row(self, make_llm):
        llm = make_llm(
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

    def test_priority_and_tags_reach_the_scheduler(self, make_llm):
        llm = make_llm()
        seen: list[Any] = []
        add = llm.engine_core.scheduler.add_request
        llm.engine_core.scheduler.add_request = lambda made: (seen.append(made), add(made))[1]  # type: ignore[method-assign]
        llm.generate([[1], [2]], GREEDY, priority=[5, 6], tags={"tenant": "a"})
        assert [(made.priority, made.tags) for made in seen] == [
            (5, {"tenant": "a"}),
            (6, {"tenant": "a"}),
        ]

    def test_a_stop_string_ends_a_request_and_frees_the_engine(self, make_llm):
        llm = make_llm()
        (whole,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=60))
        stop = whole.outputs[0].text[3:5]
        (output,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=60, stop=stop))
        assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)
        assert llm.engine_core.request_counts() == (0, 0)

    def test_a_chat_and_chats(self, make_llm):
        llm = make_llm()
        chat = [{"role": "user", "content": "hi"}]
        (output,) = llm.chat(chat, GREEDY)
        assert output.prompt == "user: hi\nassistant:"
        assert len(llm.chat([chat, chat], GREEDY)) == 2
        assert llm.chat([], GREEDY) == []
        assert ids(llm.chat(chat[0], GREEDY)) == [output.outputs[0].token_ids]

    def test_a_chat_takes_options_of_generate(self, make_llm):
        llm = make_llm()
        salts: list[Any] = []
        add = llm.engine_core.add_request
        llm.engine_core.add_request = lambda source: (salts.append(source.cache_salt), add(source))[
            1
        ]  # type: ignore[method-assign]
        llm.chat([{"role": "user", "content": "hi"}], GREEDY, cache_salt="a", use_tqdm=False)
        assert salts == ["a"]

    def test_files_are_forgotten_here_and_in_the_workers(self, make_llm, monkeypatch):
        """AF-17."""
        llm = make_llm(max_images=2, worker="tenonry_testkit.kernel.faulty:CountingWorker")
        calls: list[str] = []
        monkeypatch.setattr(llm.io_processor, "reset_mm_cache", lambda: calls.append("here"))
        monkeypatch.setattr(llm.engine_core, "call_workers", calls.append)
        llm.reset_mm_cache()
        assert calls == ["here", "reset_mm_cache"]

    def test_progress_is_shown_if_wanted(self, make_llm, capsys):
        llm = make_llm()
        llm.generate([[1], [2]], GREEDY, use_tqdm=True)
        assert "2/2 [" in capsys.readouterr().err
        llm.generate([[1]], GREEDY)  # no terminal here
        assert capsys.readouterr().err == ""

    def test_a_missing_progress_bar_is_named(self, make_llm, tmp_path, monkeypatch):
        """It is omitted by default."""
        llm = make_llm()
        with TmpPlugins(tmp_path / "nothing"):
            with pytest.raises(PluginNotFound, match="pip install tenonry-commands"):
                llm.generate([[1]], GREEDY, use_tqdm=True)
            monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
            assert ids(llm.generate([[1]], GREEDY)) == [tokens([1], GREEDY)]


class TestCallSets:
    """Methods whose call set is not in use name it, and the package that contains it."""

    @pytest.mark.parametrize(
        ("call", "method", "call_set", "package"),
        [
            (lambda llm: llm.sleep(), "sleep", "operations", "tenonry-operations"),
            (lambda llm: llm.is_sleeping(), "is_sleeping", "operations", "tenonry-operations"),
            (lambda llm: llm.list_loras(), "list_loras", "adapters", "tenonry-operations"),
            (lambda llm: llm.embed([[1]]), "embed", "pooling", "tenonry-worker-torch"),
            (lambda llm: llm.score("a", "b"), "score", "pooling", "tenonry-worker-torch"),
            (lambda llm: llm.calls["mine"].count(), "count", "mine", "its package"),
        ],
    )
    def test_that_are_missing(self, make_llm, call, method, call_set, package):
        llm = make_llm(call_sets=[])
        text = f"{method}: the call set '{call_set}' is not in use; pip install {package}, and"
        with pytest.raises(Unsupported, match=text):
            call(llm)
        assert llm.reset_prefix_cache()
        assert llm.collective_rpc("echo", [1]) == [[0, 1]]


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

    @pytest.mark.integration
    def test_the_text_is_the_same_offline_and_online(self, make_llm, monkeypatch):
        monkeypatch.setattr(ByteIOProcessor, "post_process", ShoutingIO.post_process)
        llm = make_llm()
        (offline,) = llm.generate("hello", self.SAMPLING)
        engine = AsyncLLM(llm.config)

        async def last() -> RequestOutput:
            return [output async for output in engine.generate("hello", self.SAMPLING, "r")][-1]

        online = asyncio.run(last())
        engine.shutdown()
        assert offline.outputs[0].text.startswith("<")
        assert online.outputs[0].text == offline.outputs[0].text

    def test_one_that_raises_fails_its_request_alone(self, make_llm, monkeypatch):
        monkeypatch.setattr(ByteIOProcessor, "post_process", ShoutingIO.post_process)
        bad, good = make_llm().generate(["x", "y"], self.SAMPLING)
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
    def test_a_wrong_type_names_field_value_and_type(self, make_llm, sampling, fields, text):
        with pytest.raises(RequestError, match=text):
            make_llm().generate([[1]], sampling, **fields)

    @pytest.mark.parametrize(
        "prompts", [None, 7, iter("ab"), {1, 2}, [None], [[1], {"made": "up"}], {}]
    )
    def test_what_is_no_prompt_is_refused_by_name(self, make_llm, prompts):
        with pytest.raises(
            RequestError, match=r"prompt.* must be .*a list of token ids|OtherPrompt"
        ) as caught:
            make_llm().generate(prompts, GREEDY)
        assert caught.value.param == "prompt"

    @pytest.mark.parametrize("messages", [None, "hi", ["hi"], 7, [[], None]], ids=repr)
    def test_what_is_no_chat_is_refused_by_name(self, make_llm, messages):
        with pytest.raises(RequestError, match=r"messages=.* must be a message") as caught:
            make_llm().chat(messages)
        assert caught.value.param == "messages"

    def test_a_bad_prompt_is_refused_before_anything_runs(self, make_llm):
        llm = make_llm()
        with pytest.raises(RequestError, match="the prompt is empty"):
            llm.generate([[1], []], GREEDY)
        assert (len(llm.output_processor), llm.engine_core.has_work()) == (0, False)

    def test_one_that_fails_is_an_error_output(self, make_llm):
        llm = make_llm(
            worker={"name": "tenonry_testkit.fakes:FakeWorker", "options": {"fail_row_token": 7}}
        )
        bad, good = llm.generate([[7], [8]], GREEDY)
        assert bad.outputs[0].finish_reason == "error"
        assert "NaN logits" in str(bad.error)
        assert (good.error, good.outputs[0].token_ids) == (None, tokens([8], GREEDY))

    def test_one_that_the_engine_refuses_is_an_error_output(self, make_llm):
        llm = make_llm(
            scheduler={
                "name": "tenonry_testkit.kernel.faulty:FaultyScheduler",
                "options": {"refuse": "1"},
            }
        )
        good, bad = llm.generate([[1], [2]], GREEDY)
        assert good.error is None
        assert "this one never" in str(bad.error)

    def test_a_dead_engine_says_so_from_then_on(self, make_llm):
        """EC-8: the first call has the cause, later ones the news."""
        llm = make_llm(
            worker={"name": "tenonry_testkit.fakes:FakeWorker", "options": {"fail_step_token": 7}}
        )
        with pytest.raises(PluginFault, match="told to fail on token 7"):
            llm.generate([[7], [8]], GREEDY)
        with pytest.raises(
            EngineDeadError, match=r"the engine has stopped: plugin .*told to fail on token 7"
        ):
            llm.generate([[8]], GREEDY)

    def test_a_dead_engine_is_still_shut_down(self, make_llm):
        llm = make_llm(
            executor="tenonry_testkit.kernel.faulty:FaultyExecutor", stat_loggers=["tenonry_testkit.fakes:RecordingStatLogger"],  # noqa: E501
            worker={"name": "tenonry_testkit.fakes:FakeWorker", "options": {"fail_step_token": 7}},
        )  # fmt: skip
        with pytest.raises(PluginFault):
            llm.generate([[7]], GREEDY)
        CALLS.clear()
        llm.shutdown()
        assert CALLS == ["FaultyExecutor.shutdown"]
        assert not [thread for thread in threading.enumerate() if thread.name == "tenonry-stats"]

    def test_an_interrupt_leaves_an_engine_that_works(self, make_llm, monkeypatch):
        llm = make_llm()
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
        assert len(llm.output_processor) == 0
        assert llm.engine_core.request_counts() == (0, 0)

    def test_a_detokenizer_that_cannot_be_made_leaves_nothing_open(self, make_llm, monkeypatch):
        llm = make_llm()
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
        assert len(llm.output_processor) == 0
        assert len(llm.generate(["a"], GREEDY)) == 1


class TestThreads:
    """One engine steps for one caller at a time."""

    PROMPTS = ("Once", "upon", "a time", "there", "was", "a", "king")

    def texts(self, llm: Any, number: int) -> list[str]:
        params = SamplingParams(max_tokens=12, seed=number, temperature=1.0)
        return [each.outputs[0].text for each in llm.generate(list(self.PROMPTS[number:]), params)]

    def test_four_threads_get_what_each_would_get_alone(self, make_llm):
        with make_llm() as llm:
            alone = [self.texts(llm, number) for number in range(4)]
            with ThreadPoolExecutor(4) as threads:
                for _ in range(5):
                    together = list(threads.map(lambda number: self.texts(llm, number), range(4)))
                    assert together == alone

    def test_a_shutdown_waits_for_the_call_of_another_thread(self, make_llm):
        with make_llm() as llm, ThreadPoolExecutor(1) as threads:
            begun = threading.Event()
            step = llm.engine_core.step

            def watched_step() -> Any:
                begun.set()
                return step()

            llm.engine_core.step = watched_step  # type: ignore[method-assign]
            call = threads.submit(self.texts, llm, 0)
            assert begun.wait(10)
            llm.shutdown()
            assert len(call.result(10)) == len(self.PROMPTS)
            with pytest.raises(EngineDeadError):
                llm.generate("more")

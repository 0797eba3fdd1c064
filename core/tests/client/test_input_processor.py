"""Conversion of a caller's input to requests: ids, seeds, stop ids, handles, limits (AF-6, AF-9, IP-1)."""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
import pytest

from tenonry.client.input_processor import InputProcessor
from tenonry.config import EngineConfig
from tenonry.errors import RequestError
from tenonry.interfaces.io_processor import (
    IOProcessorContext,
    ProcessedPrompt,
    TextPrompt,
    TokenPrompt,
    read_prompt,
)
from tenonry.messages import CLIENT_SHIFT, EngineCoreRequest
from tenonry.plugin.plan import PluginPlan
from tenonry.sampling_params import SamplingParams, StructuredOutput
from tenonry.step import Adapter
from tenonry_testkit.fakes import ByteIOProcessor
from tenonry_testkit.fakes.model import fake_info, fake_model

CONFIG = EngineConfig(model="fake", seed=3)
IO = ByteIOProcessor(IOProcessorContext(CONFIG, fake_model()))
RANDOM = SamplingParams(temperature=1.0)


def processor(io: Any = IO, *, client: int = 0, seed: int = 3, **facts: Any) -> InputProcessor:
    model = fake_model(**{"eos_token_ids": (256, 257), **facts})
    config = EngineConfig(model="fake", seed=seed)
    return InputProcessor(config, PluginPlan(), model, io, fake_info(100), client)


class PromptLog(ByteIOProcessor):
    """Keeps the prompts that it gets."""

    def __init__(self, context: IOProcessorContext) -> None:
        super().__init__(context)
        self.prompts: list[Any] = []

    def process_prompt(
        self, prompt: Any, params: SamplingParams, **options: Any
    ) -> ProcessedPrompt:
        self.prompts.append(prompt)
        return super().process_prompt(prompt, params, **options)


def ready_request(**fields: Any) -> EngineCoreRequest:
    return EngineCoreRequest(
        **{
            "handle": 77, "request_id": "old", "prompt_token_ids": np.array([1, 2]), "priority": 4,
            "sampling_params": SamplingParams(), "cache_salt": "salt", "adapter": Adapter("lora", "1f"), **fields,
        }
    )  # fmt: skip


def engine_request(
    prompt: Any = "hi", params: SamplingParams = RANDOM, **fields: Any
) -> EngineCoreRequest:
    return processor().process(prompt, params, "r", **fields)[1][0]


class TestPrompts:
    @pytest.mark.parametrize(
        "prompt",
        ["hi", {"prompt": "hi"}, [104, 105], {"prompt_token_ids": [104, 105]}, np.array([104, 105]),
         {"prompt_token_ids": np.array([104, 105], np.uint16)}, {"prompt_token_ids": (104, 105)}, (104, 105),
         TextPrompt("hi"), TokenPrompt([104, 105]), ready_request(prompt_token_ids=np.array([104, 105]))],
        ids=repr,
    )  # fmt: skip
    def test_every_form(self, prompt):
        request = engine_request(prompt)
        assert request.prompt_token_ids.tolist() == [104, 105]
        assert request.prompt_token_ids.dtype == np.int32

    @pytest.mark.parametrize(
        ("prompt", "text"),
        [
            ([], "the prompt is empty"), ({"prompt_token_ids": []}, "the prompt is empty"), (np.empty(0), "is empty"),
            ([1.5], "flat list of integers"), ([True], "flat list"), (["a"], "flat list"), ([[1]], "flat list"),
            ([1, [2]], "flat list"), ([None], "flat list"), ([{}], "flat list"), ([2**70], "flat list"),
            ([-1], "between 0 and 2147483647"), ([2**31], "between 0 and 2147483647"), ([512], "token id 512"),
            ([1] * 100, "max_model_len=100"), ("", "is empty"), (5, "is 5; it must be a text"),
            (None, "is None; it must be a text"), ({}, "is {}; it must be a text"), ({"prompt": None}, "OtherPrompt"),
            ({"prompt": 5}, "'prompt' is a int; the prompt must be"),
            (iter("x"), "is <str.*; it must be a text"), (b"x", "is b'x'; it must be a text"),
            ({"prompt_token_ids": "x"}, "flat list of integers"), ({"made": "up"}, "OtherPrompt"),
            ({"prompt_token_ids": 7}, "'prompt_token_ids' is a int"),
            ({"prompt": 5, "prompt_token_ids": [1]}, "'prompt' is a int"),
        ],
    )  # fmt: skip
    def test_anything_else_is_refused(self, prompt, text):
        with pytest.raises(RequestError, match=text) as caught:
            engine_request(prompt)
        assert caught.value.param == "prompt"

    def test_without_an_io_processor_only_ids(self):
        """IP-1, AF-3: absent → none."""
        plain = processor(None)
        assert plain.process([1, 2], RANDOM, "r")[0].text is None
        with pytest.raises(
            RequestError, match=r"no tokenizer is loaded; give token ids: \{'prompt_token_ids'"
        ):
            plain.process("hi", RANDOM, "r")
        for fields in ({"bad_words": ["x"]}, {"structured_output": StructuredOutput(regex="x")}):
            with pytest.raises(
                RequestError, match="need a tokenizer, but none is loaded"
            ) as caught:
                plain.process([1, 2], SamplingParams(**fields), "r")
            assert caught.value.param in fields

    def test_bad_words_become_ids(self):
        request = engine_request([1, 2], SamplingParams(bad_words=["ab", "c"]))
        assert request.bad_words == ((97, 98), (99,))

    def test_a_ready_request_keeps_its_fields(self):
        ready = EngineCoreRequest(
            handle=77, request_id="old", prompt_token_ids=np.array([1, 2]), sampling_params=SamplingParams(),
            output_token_ids=[3], stop_token_ids=(9,), priority=4, tags={"a": 1.0},
        )  # fmt: skip
        processed, (request,) = processor().process(ready, RANDOM, "new")
        assert request.request_id == "new"
        assert request.handle == 1
        assert request.priority == 4
        assert request.output_token_ids == [3]
        assert request.stop_token_ids == (9,)
        assert request.tags == {"a": 1.0}
        assert processed.token_ids.tolist() == [1, 2]
        assert ready.handle == 77


class TestFields:
    def test_they_reach_the_request(self):
        request = engine_request(
            priority=2, tags={"tenant": "a"}, cache_salt="s", trace_headers={"h": "1"}, kv_transfer_params={"k": 1},
            data_parallel_rank=0,
        )  # fmt: skip
        assert request.priority == 2
        assert request.tags == {"tenant": "a"}
        assert request.cache_salt == "s"
        assert request.trace_headers == {"h": "1"}
        assert request.kv_transfer_params == {"k": 1}
        assert request.data_parallel_rank == 0

    def test_none_means_not_given(self):
        assert engine_request(tags=None, priority=None).tags == {}

    def test_an_unknown_one_is_a_type_error(self):
        with pytest.raises(TypeError, match=r"'lora_request' is not a request keyword; it takes "):
            engine_request(lora_request="x")

    @pytest.mark.parametrize("ready", [False, True])
    @pytest.mark.parametrize(
        ("misspelt", "nearest"), [("priorty", "priority"), ("cache_slat", "cache_salt")]
    )
    def test_a_misspelt_one_names_the_nearest(self, misspelt, nearest, ready):
        with pytest.raises(TypeError, match=f"'{misspelt}' .*did you mean '{nearest}'?"):
            engine_request(ready_request() if ready else "hi", **{misspelt: 1})

    @pytest.mark.parametrize("name", ["handle", "prompt_token_ids"])
    def test_the_front_ends_own_ones_are_not_for_callers(self, name):
        with pytest.raises(TypeError, match=f"'{name}' is not a request keyword"):
            engine_request(**{name: 1})

    @pytest.mark.parametrize("ready", [False, True])
    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("priority", "high", "`int`, got `str`"),
            ("priority", True, "`int`, got `bool`"),
            ("tags", ["a"], "`object`, got `array`"),
            ("tags", {"a": None}, "`float | str`, got `null`"),
            ("cache_salt", 5, "`str | null`, got `int`"),
            ("data_parallel_rank", "0", "`int | null`, got `str`"),
            ("trace_headers", {"a": 1}, "`str`, got `int`"),
            ("kv_transfer_params", "x", "`object | null`, got `str`"),
            ("add_special_tokens", "no", "`bool`, got `str`"),
        ],
    )
    def test_a_wrong_type_names_field_value_and_type(self, name, value, expected, ready):
        text = f"{name}={value!r} has the wrong type: Expected {expected}"
        with pytest.raises(RequestError, match=re.escape(text)) as caught:
            engine_request(ready_request() if ready else "hi", **{name: value})
        assert caught.value.param == name

    def test_those_beside_a_ready_request_are_applied(self):
        request = engine_request(ready_request(), priority=7, tags={"a": 2.0}, cache_salt=None)
        assert (request.priority, request.tags) == (7, {"a": 2.0})
        assert (request.cache_salt, request.adapter) == ("salt", Adapter("lora", "1f"))

    @pytest.mark.parametrize(
        ("name", "value"),
        [("add_special_tokens", False), ("tokenization_kwargs", {"truncate_prompt_tokens": 1})],
    )
    def test_tokenization_of_a_ready_request_is_refused(self, name, value):
        """Its prompt has its tokens already."""
        with pytest.raises(RequestError, match=f"{name}: the prompt is an EngineCoreReq") as caught:
            engine_request(ready_request(), **{name: value})
        assert caught.value.param == name

    def test_the_text_of_a_ready_request_is_shown(self):
        """AF-6."""
        processed, _ = processor().process(ready_request(), RANDOM, "r", prompt_text="so")
        assert (processed.text, processed.token_ids.tolist()) == ("so", [1, 2])

    @pytest.mark.parametrize("prompt", ["hi", [1, 2], {"prompt_token_ids": [1]}], ids=repr)
    def test_the_text_of_another_prompt_is_its_own(self, prompt):
        with pytest.raises(RequestError, match="prompt_text belongs to an EngineCoreReq") as caught:
            engine_request(prompt, prompt_text="so")
        assert caught.value.param == "prompt_text"

    def test_the_time_of_arrival_stays_in_the_request(self):
        assert engine_request(arrival_time=3.5).arrival_time == 3.5
        assert engine_request(ready_request(arrival_time=2.5)).arrival_time == 2.5
        assert engine_request().arrival_time is None

    @pytest.mark.parametrize(
        ("prompt", "given"),
        [
            ("hi", {}),
            ({"prompt": "hi", "k": 1}, {"k": 1}),
            ([1, 2], {}),
            ({"prompt_token_ids": [1, 2]}, {}),
        ],
        ids=repr,
    )
    def test_tokenization_kwargs_are_fields_of_the_prompt(self, prompt, given):
        io = PromptLog(IOProcessorContext(CONFIG, fake_model()))
        processor(io).process(prompt, RANDOM, "r", tokenization_kwargs={"truncation": True})
        (read,) = io.prompts
        assert read.options == {**given, "truncation": True}
        assert read.text == "hi" if "hi" in str(prompt) else read.token_ids.tolist() == [1, 2]

    @pytest.mark.parametrize(
        ("name", "value"), [("priority", "high"), ("tags", None), ("adapter", 3)]
    )
    def test_a_ready_request_of_wrong_types_is_refused(self, name, value):
        """Its constructor checks nothing."""
        with pytest.raises(RequestError, match=f"{name}={value!r} has the wrong type"):
            engine_request(ready_request(**{name: value}))

    def test_the_salt_of_a_prompt_is_that_of_the_request(self):
        """vLLM's form of a prompt has it; a field of the call wins."""
        prompt = {"prompt_token_ids": [1], "cache_salt": "a"}
        assert engine_request(prompt).cache_salt == "a"
        assert engine_request(prompt, cache_salt="b").cache_salt == "b"
        with pytest.raises(RequestError, match="cache_salt=7 has the wrong type"):
            engine_request({**prompt, "cache_salt": 7})

    @pytest.mark.parametrize(
        ("params", "request_id", "text"),
        [
            ({"max_tokens": 1}, "r", "sampling_params={'max_tokens': 1} must be a SamplingParams"),
            (None, "r", "sampling_params=None must be a SamplingParams"),
            (RANDOM, 5, "request_id=5 must be a str"),
        ],
    )
    def test_what_every_request_needs_has_its_type(self, params, request_id, text):
        with pytest.raises(RequestError, match=text):
            InputProcessor.check_call(params, request_id)

    @pytest.mark.parametrize(
        ("params", "ids"),
        [
            (SamplingParams(), (256, 257)),
            (SamplingParams(stop_token_ids=[5, 256]), (256, 257, 5)),
            (SamplingParams(stop_token_ids=[5], ignore_eos=True), (5,)),
            (SamplingParams(ignore_eos=True), ()),
        ],
    )
    def test_stop_ids_are_the_models_and_the_callers(self, params, ids):
        assert engine_request(params=params).stop_token_ids == ids


class TestSeeds:
    """A request without a seed gets one here: its samples never depend on where it runs."""

    def test_a_given_seed_is_kept_and_counted_up_over_completions(self):
        _, requests = processor().process("x", SamplingParams(n=3, seed=7), "r")
        assert [request.sampling_params.seed for request in requests] == [7, 8, 9]

    @pytest.mark.parametrize("seed", [2**63 - 1, -(2**63)])
    def test_the_ends_of_the_range_wrap(self, seed):
        _, requests = processor().process("x", SamplingParams(n=2, seed=seed), "r")
        seeds = [request.sampling_params.seed for request in requests]
        assert seeds == [seed, seed + 1 if seed < 2**63 - 1 else -(2**63)]

    def test_without_one_they_differ_and_come_from_the_engines_seed(self):
        def seeds(engine_seed: int) -> list[int | None]:
            made = processor(seed=engine_seed)
            return [
                request.sampling_params.seed
                for i in range(3)
                for request in made.process("x", RANDOM, f"{i}")[1]
            ]

        assert seeds(1) == seeds(1)
        assert seeds(1) != seeds(2)
        assert len(set(seeds(1))) == 3

    def test_a_greedy_request_needs_none(self):
        assert engine_request(params=SamplingParams(temperature=0)).sampling_params.seed is None


class TestHandles:
    """AF-6: one per completion; engine and wire use only those."""

    def test_they_count_up_from_the_clients_base(self):
        made = processor(client=3)
        handles = [
            request.handle
            for i in range(2)
            for request in made.process("x", SamplingParams(n=2), f"{i}")[1]
        ]
        assert [handle - (3 << CLIENT_SHIFT) for handle in handles] == [1, 2, 3, 4]

    def test_a_refused_request_uses_up_none(self):
        made = processor()
        with pytest.raises(RequestError):
            made.process([], RANDOM, "r")
        assert made.process("x", RANDOM, "r")[1][0].handle == 1

    def test_threads_never_get_the_same(self):
        made = processor()
        handles: list[int] = []

        def work(name: str) -> None:
            for i in range(300):
                handles.extend(
                    request.handle
                    for request in made.process([1], SamplingParams(n=2), f"{name}{i}")[1]
                )

        threads = [threading.Thread(target=work, args=(f"{i}-",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(handles)) == len(handles) == 2400

    def test_completions_share_everything_else(self):
        _, (first, second) = processor().process(
            "x", SamplingParams(n=2, seed=1), "r", tags={"a": 1.0}
        )
        assert second.prompt_token_ids is first.prompt_token_ids
        assert (second.request_id, second.tags) == (first.request_id, first.tags)


@pytest.mark.parametrize(
    ("prompt", "num_chars"),
    [
        ("x" * 10, 10), ({"prompt": "x" * 20}, 20), ({"prompt": "xx", "prompt_token_ids": None}, 2), ([1] * 30, 0),
        ({"prompt_token_ids": [1]}, 0), ({"prompt": "xxx", "prompt_token_ids": [1]}, 0), ({"messages": []}, 0),
    ],
    ids=lambda value: str(value)[:12],
)  # fmt: skip
def test_texts_are_tokenised_ids_are_not(prompt, num_chars):
    for each in (prompt, read_prompt(prompt)):
        assert InputProcessor.num_text_chars(each, SamplingParams()) == num_chars
        assert (
            InputProcessor.num_text_chars(each, SamplingParams(bad_words=["ab", "c"]))
            == num_chars + 3
        )


@pytest.mark.parametrize("prompt", [None, 5, {"prompt": ["x"]}])
def test_what_is_no_prompt_has_no_text(prompt):
    assert InputProcessor.num_text_chars(prompt, SamplingParams()) == 0

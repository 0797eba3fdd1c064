"""Structured output with the demo model: the answers have the requested form, for any batches (SO-1, EC-6).

The oracles are `jsonschema`, `re` and the choices themselves. Tokens are compared with those of each request alone.
"""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial

import jsonschema
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_process import ForkedServer

from tenonry import LLM, AsyncLLM, EngineConfig, SamplingParams, StructuredOutput
from tenonry.errors import RequestError

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(120)]
PROMPT = "Once upon a time there was a little girl. "
NAME = {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"}
PERSON = {
    "type": "object",
    "properties": {
        "name": NAME,
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"leaf": {"type": "boolean"}, "next": {"$ref": "#/$defs/node"}},
            "required": ["leaf"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
NUMBER = r"[A-Z][a-z]{2,5} \d{3}"
CHOICES = ("a cat", "a cat and a dog", "nothing")
LARK = 'start: "<" NAME ">" start? "</>"\nNAME: /[a-z]{1,4}/'
GBNF = 'root ::= "(" root ")" | "x"'


def is_json(schema):
    def check(text):
        jsonschema.validate(json.loads(text), schema)
        return True

    return check


def is_nested(text):
    half = len(text) // 2
    return text == "(" * half + "x" + ")" * half


def is_tagged(text):
    depth = text.count("</>")
    return bool(re.fullmatch(rf"(<[a-z]{{1,4}}>){{{depth}}}(</>){{{depth}}}", text)) and depth > 0


ASKED = {
    "person": (StructuredOutput(json=json.dumps(PERSON)), is_json(PERSON)),
    "tree": (StructuredOutput(json=json.dumps(TREE)), is_json(TREE)),
    "regex": (StructuredOutput(regex=NUMBER), lambda text: re.fullmatch(NUMBER, text)),
    "choice": (StructuredOutput(choice=CHOICES), lambda text: text in CHOICES),
    "lark": (StructuredOutput(grammar=LARK), is_tagged),
    "gbnf": (StructuredOutput(grammar=GBNF), is_nested),
}
SETTINGS = {
    "model": "demo", "worker": "torch", "executor": "uni", "dtype": "float32", "device": "cpu", "max_num_seqs": 16,
    "max_model_len": 256, "block_size": 4,
}  # fmt: skip
DEEP = """
from tenonry_worker_torch.worker import TorchWorker

class TwoSteps(TorchWorker):
    steps_in_flight = 2
"""
WAYS = {
    "chunked prefill": {"max_num_batched_tokens": 16},
    "preemption": {"num_gpu_blocks_override": 64},
    "no prefix cache": {"enable_prefix_caching": False},
    "two steps in flight": {"worker": "{folder}/deep.py:TwoSteps"},
    "worker transformers": {"worker": "transformers"},
    "two ranks": {"tensor_parallel_size": 2, "executor": "mp"},
}


def requests():
    """Prompts and parameters: greedy and sampled, and rows without a grammar among them."""
    asked = []
    for place, (spec, _) in enumerate(ASKED.values()):
        prompt = PROMPT * (1 + place % 3)
        greedy = SamplingParams(temperature=0, max_tokens=80, structured_output=spec)
        drawn = SamplingParams(
            temperature=0.8, seed=place, max_tokens=80, structured_output=spec, presence_penalty=0.5, top_p=0.95
        )  # fmt: skip
        asked += [(prompt, greedy), (prompt, drawn)]
    asked.append((PROMPT, SamplingParams(temperature=0, max_tokens=40)))
    return asked


def outputs(llm, asked):
    """Tokens, text, why it ended and how often it was preempted, of each completion."""
    prompts, params = zip(*asked, strict=True)
    found = llm.generate(list(prompts), list(params), use_tqdm=False)
    for output in found:
        assert output.error is None
    return [
        (list(one.token_ids), one.text, one.finish_reason, output.metrics.num_preemptions)
        for output in found
        for one in output.outputs
    ]


@pytest.fixture(scope="module")
def llm():
    with LLM(**SETTINGS) as opened:
        warm = StructuredOutput(choice=("yes",))  # starts the process and the thread for grammars
        opened.generate([PROMPT], SamplingParams(structured_output=warm), use_tqdm=False)
        yield opened


@pytest.fixture(scope="module")
def alone(llm):
    return [outputs(llm, [request])[0] for request in requests()]


def test_each_alone_satisfies_what_was_asked(alone):
    checks = [check for _, check in ASKED.values() for _ in range(2)]
    complete = 0
    for (_, text, reason, _), check in zip(alone, checks, strict=False):
        if reason == "stop":
            complete += 1
            assert check(text), text
    assert complete >= 6


def test_together_they_are_what_they_are_alone(llm, alone):
    assert outputs(llm, requests()) == alone


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("way", WAYS)
def test_however_the_batch_is_cut(way, alone, tmp_path, forked_children):
    (tmp_path / "deep.py").write_text(DEEP)
    changed = {
        name: value.format(folder=tmp_path) if isinstance(value, str) else value
        for name, value in WAYS[way].items()
    }
    with LLM(**{**SETTINGS, **changed}) as other:
        found = outputs(other, requests())
    assert [tokens for tokens, *_ in found] == [tokens for tokens, *_ in alone]
    assert any(one[3] for one in found) is (way == "preemption")


def test_several_completions_of_one_request(llm):
    spec, check = ASKED["regex"]
    params = SamplingParams(n=4, seed=3, max_tokens=40, structured_output=spec, logprobs=2)
    (output,) = llm.generate([PROMPT], params, use_tqdm=False)
    texts = [one.text for one in output.outputs]
    assert all(check(text) for text in texts)
    assert len(set(texts)) > 1
    for one in output.outputs:
        assert len(one.logprobs) == len(one.token_ids)
        for token_id, found in zip(one.token_ids, one.logprobs, strict=True):
            assert found[token_id].logprob <= 0


def test_it_starts_after_the_tokens(llm):
    marker = llm.io_processor.encode("!", add_special_tokens=False)
    spec = StructuredOutput(regex="[0-9]{4}", start_after=tuple(marker))
    params = SamplingParams(
        temperature=0, max_tokens=60, structured_output=spec, logit_bias={marker[-1]: 12.0}
    )
    (output,) = llm.generate([PROMPT], params, use_tqdm=False)
    assert re.fullmatch(r"[^!]*![0-9]{4}", output.outputs[0].text)
    assert output.outputs[0].finish_reason == "stop"


MARKED = "a<|im_end|>b<|im_start|>"
MARKED_JSON = json.dumps(MARKED)
MARKED_NAME = {
    "type": "object",
    "properties": {MARKED: {"const": 1}},
    "required": [MARKED],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"choice": (MARKED,)}, MARKED),
        ({"regex": re.escape(MARKED)}, MARKED),
        ({"grammar": f"start: {MARKED_JSON}"}, MARKED),
        ({"grammar": f"root ::= {MARKED_JSON}"}, MARKED),
        ({"json": json.dumps({"const": MARKED})}, MARKED_JSON),
        ({"json": json.dumps({"enum": [MARKED]})}, MARKED_JSON),
        ({"json": json.dumps(MARKED_NAME)}, f"{{{MARKED_JSON}:1}}"),
    ],
)
def test_names_of_special_tokens_are_text(llm, fields, text):
    spec = StructuredOutput(**fields)
    params = SamplingParams(temperature=0, max_tokens=150, structured_output=spec)
    (output,) = llm.generate([PROMPT], params, use_tqdm=False)
    (answer,) = output.outputs
    assert answer.finish_reason == "stop"
    assert "".join(answer.text.split()) == text
    special = {
        llm.io_processor.encode(name, add_special_tokens=False)[0]
        for name in ("<|im_end|>", "<|im_start|>")
    }
    assert not special & set(answer.token_ids[:-1])


def _integer(low, size):
    return {"type": "integer", "minimum": low, "maximum": low + size}


def _string(low, size):
    return {"type": "string", "minLength": low, "maxLength": low + size}


def _enum(values):
    return {"enum": values}


def _any_of(forms):
    return {"anyOf": forms}


def _array(items, most):
    return {"type": "array", "items": items, "minItems": min(1, most), "maxItems": most}


def _object(properties, required):
    names = sorted(properties)
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name, wanted in zip(names, required, strict=False) if wanted],
        "additionalProperties": False,
    }


values = st.integers(0, 9) | st.sampled_from(["a", "b c"]) | st.none()
leaves = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"const": {"k": [1, "x"]}}]),
    st.builds(_integer, st.integers(-50, 50), st.integers(0, 99)),
    st.builds(_string, st.integers(0, 3), st.integers(0, 4)),
    st.builds(_enum, st.lists(values, min_size=1, max_size=3, unique=True)),
)
flags = st.lists(st.booleans(), min_size=3, max_size=3)
schemas = st.recursive(
    leaves,
    lambda part: st.one_of(
        st.builds(_object, st.dictionaries(st.sampled_from("abc"), part, max_size=3), flags),
        st.builds(_array, part, st.integers(0, 2)),
        st.builds(_any_of, st.lists(part, min_size=1, max_size=2)),
    ),
    max_leaves=5,
)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=schemas, seed=st.integers(0, 99))
def test_any_small_schema_is_satisfied(llm, schema, seed):
    spec = StructuredOutput(json=json.dumps(schema))
    asked = [
        (PROMPT, SamplingParams(temperature=0, max_tokens=120, structured_output=spec)),
        (
            PROMPT,
            SamplingParams(temperature=1.2, seed=seed, max_tokens=120, structured_output=spec),
        ),
    ]
    for _, text, reason, _ in outputs(llm, asked):
        if reason == "stop":
            jsonschema.validate(json.loads(text), schema)


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            (
                {"json": '{"properties": {"a": {"uniqueItems": true}}}'},
                "/properties/a: .*uniqueItems",
            ),
            ({"json": '{"$ref": "#/$defs/a"}'}, "does not exist"),
            ({"regex": "(?=a)"}, "look-around"),
            ({"grammar": "start: foo"}, "unknown name"),
        ],
    )
    def test_before_anything_runs(self, llm, fields, message):
        with pytest.raises(RequestError, match=message):
            llm.generate([PROMPT], SamplingParams(structured_output=StructuredOutput(**fields)))

    def test_an_answer_that_cannot_end(self, llm):
        spec = StructuredOutput(regex="a")
        with pytest.raises(RequestError, match="ignore_eos=True needs stop_token_ids"):
            llm.generate([PROMPT], SamplingParams(ignore_eos=True, structured_output=spec))

    @pytest.mark.parametrize(
        "fields", [{"choice": ("yes", "no")}, {"regex": "a{1,3}"}, {"json": '{"type": "null"}'}]
    )
    def test_more_tokens_than_any_text_has(self, llm, fields):
        params = SamplingParams(
            max_tokens=40, min_tokens=30, structured_output=StructuredOutput(**fields)
        )
        with pytest.raises(RequestError, match=r"min_tokens=30 .* lower min_tokens") as caught:
            llm.generate([PROMPT], params)
        assert caught.value.param == "min_tokens"

    def test_parameters_that_leave_no_token_fail_their_request_alone(self, llm):
        spec = StructuredOutput(choice=("yes", "no"))
        impossible = SamplingParams(max_tokens=40, min_tokens=3, structured_output=spec)
        failed, fine = llm.generate(
            [PROMPT, PROMPT], [impossible, SamplingParams(temperature=0, structured_output=spec)], use_tqdm=False
        )  # fmt: skip
        assert failed.outputs[0].finish_reason == "error"
        assert "under this request's grammar" in failed.error
        assert fine.outputs[0].text in {"yes", "no"}


@pytest.mark.nightly  # as the checker of tenonry-grammars, and a server in test_xgrammar.py, for half a minute
def test_a_bomb_costs_its_own_request_and_no_other_a_token(forked_children):
    """Streams continue while a schema takes all of its two seconds (reliability, fault 22)."""
    bomb = StructuredOutput(
        json=json.dumps(
            {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(6000)}}
        )
    )

    async def main():
        engine = AsyncLLM(EngineConfig(**{**SETTINGS, "executor": "mp"}))
        try:

            async def stream():
                params = SamplingParams(max_tokens=200, ignore_eos=True)
                outputs = [output async for output in engine.generate(PROMPT, params, "s")]
                return outputs[-1].outputs[0].token_ids

            async def drop():
                async for _ in engine.generate(PROMPT, SamplingParams(structured_output=bomb), "b"):
                    pass

            running = asyncio.create_task(stream())
            with pytest.raises(RequestError, match="not compiled within 2 s"):
                await drop()
            assert len(await asyncio.wait_for(running, 60)) == 200
        finally:
            engine.shutdown()

    asyncio.run(main())


@pytest.fixture(scope="module")
def server():
    running = ForkedServer(
        "demo", "--worker", "torch", "--device", "cpu", "--max-num-seqs", "8", "--load-format", "auto",
        "--api-server-count", "2", "--schema-keywords", "lenient",
    )  # fmt: skip
    try:
        yield running.ready()
    finally:
        running.close()


class TestServer:
    def test_official_client_gets_json(self, server):
        response_format = {
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": PERSON, "strict": True},
        }
        for _ in range(3):  # of both servers
            with server.client() as client:
                options = {
                    "model": "tiny",
                    "messages": [{"role": "user", "content": "Who are you?"}],
                    "max_completion_tokens": 200,
                    "temperature": 0,
                    "response_format": response_format,
                }
                whole = client.chat.completions.create(**options)
                chunks = list(client.chat.completions.create(**options, stream=True))
            text = whole.choices[0].message.content
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
            assert whole.choices[0].finish_reason == "stop"
            jsonschema.validate(json.loads(text), PERSON)

    @pytest.mark.parametrize(
        ("extra", "check"),
        [
            ({"guided_regex": NUMBER}, ASKED["regex"][1]),
            ({"guided_choice": list(CHOICES)}, ASKED["choice"][1]),
            ({"structured_outputs": {"choice": [MARKED]}}, lambda text: text == MARKED),
            ({"guided_grammar": GBNF}, is_nested),
            ({"structured_outputs": {"grammar": LARK}}, is_tagged),
            (
                {"response_format": {"type": "json_object"}},
                lambda text: isinstance(json.loads(text), dict),
            ),
        ],
    )
    def test_other_names_on_both_routes(self, server, extra, check):
        with server.client() as client:
            options = {"model": "tiny", "max_tokens": 100, "temperature": 0, "extra_body": extra}
            whole = client.completions.create(prompt=PROMPT, **options)
            chat = client.chat.completions.create(
                messages=[{"role": "user", "content": "Hi"}], **options
            )
        for reason, text in (
            (whole.choices[0].finish_reason, whole.choices[0].text),
            (chat.choices[0].finish_reason, chat.choices[0].message.content),
        ):
            assert reason == "length" or check(text)

    @pytest.mark.parametrize("is_chat", [False, True])
    @pytest.mark.parametrize("min_tokens", [3, 8])
    def test_a_row_without_a_token_is_a_400_with_the_cause(self, server, min_tokens, is_chat):
        """Eight tokens are more than any choice has; whether three are is known when the row has none left."""
        extra = {"structured_outputs": {"choice": ["yes"]}, "min_tokens": min_tokens}
        options = {"model": "tiny", "max_tokens": 20, "extra_body": extra}
        with server.client() as client:
            ask = partial(client.completions.create, prompt=PROMPT, **options)
            if is_chat:
                messages = [{"role": "user", "content": "Hi"}]
                ask = partial(client.chat.completions.create, messages=messages, **options)
            with pytest.raises(openai.BadRequestError) as caught:
                ask()
        known = (caught.value.code, caught.value.param)
        expected = {3: ("no_token_left", None), 8: ("invalid_request", "min_tokens")}
        assert known == expected[min_tokens]

    def test_a_stream_without_a_token_ends_with_the_cause(self, server):
        extra = {"structured_outputs": {"grammar": 'start: "a" | "bb"'}, "min_tokens": 4}
        with server.client() as client, pytest.raises(openai.APIError) as caught:
            list(
                client.completions.create(
                    model="tiny", prompt=PROMPT, stream=True, extra_body=extra
                )
            )
        assert caught.value.code == "no_token_left"

    def test_a_keyword_that_is_not_enforced_is_named(self, server):
        schema = {
            "type": "array",
            "items": {"enum": [*range(8)]},
            "uniqueItems": True,
            "minItems": 5,
        }
        with server.client() as client:
            raw = client.completions.with_raw_response.create(
                model="tiny",
                prompt=PROMPT,
                max_tokens=60,
                extra_body={"guided_json": {**schema, "maxItems": 5}},
            )
        assert raw.headers["x-tenonry-ignored"] == "schema/uniqueItems"
        assert len(json.loads(raw.parse().choices[0].text)) == 5

    @pytest.mark.parametrize(
        ("extra", "message"),
        [
            (
                {"guided_json": {"properties": {"a": {"type": "strin"}}}},
                "/properties/a: 'type' is 'strin'; it must be one of",
            ),
            ({"guided_regex": "(a"}, "unclosed group"),
            ({"guided_json": "x" * (1 << 20)}, "larger than"),
            ({"guided_regex": "a", "guided_choice": ["a"]}, "give one of them"),
        ],
    )
    def test_what_cannot_be_served_is_a_400(self, server, extra, message):
        with server.client() as client, pytest.raises(openai.BadRequestError, match=message):
            client.completions.create(model="tiny", prompt="x", extra_body=extra)

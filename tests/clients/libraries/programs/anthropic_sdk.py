"""The official `anthropic` library: Messages."""

from __future__ import annotations

from anthropic import Anthropic, NotFoundError
from scenarios import MODEL, NO_MODEL, QUESTION, URL, WEATHER, forecast, run

client = Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=60)
ASK = [{"role": "user", "content": QUESTION}]
ANY = {"type": "any", "disable_parallel_tool_use": True}
GREEDY = {"temperature": 0}  # the library no longer has a parameter for it
TOOL = {"name": "forecast", "description": "Weather of a city.", "input_schema": WEATHER}


def chat():
    answer = client.messages.create(model=MODEL, messages=ASK, max_tokens=30, extra_body=GREEDY)
    return {"text": answer.content[0].text, "tokens": answer.usage.output_tokens}


def stream():
    with client.messages.stream(
        model=MODEL, messages=ASK, max_tokens=30, extra_body=GREEDY
    ) as events:
        text = "".join(events.text_stream)
        tokens = events.get_final_message().usage.output_tokens
    return {"text": text, "tokens": tokens}


def tools():
    first = client.messages.create(
        model=MODEL, messages=ASK, tools=[TOOL], tool_choice=ANY, max_tokens=200
    )
    (call,) = [block for block in first.content if block.type == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": forecast(**call.input)}
    second = client.messages.create(
        model=MODEL,
        messages=[
            *ASK,
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ],
        tools=[TOOL],
        tool_choice={"type": "none"},
        max_tokens=20,
    )
    return {"calls": [call.input], "text": "".join(block.text for block in second.content)}


def structured():
    """The form that predates structured outputs of this API: a tool whose input is the answer."""
    form = {
        "name": "trip",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"enum": ["Tokyo", "Rome"]}, "nights": {"enum": [1, 2, 3]}},
            "required": ["city", "nights"],
            "additionalProperties": False,
        },
    }
    answer = client.messages.create(
        model=MODEL,
        messages=ASK,
        tools=[form],
        tool_choice={"type": "tool", "name": "trip", "disable_parallel_tool_use": True},
        max_tokens=200,
    )
    return answer.content[-1].input


def cancel():
    with client.messages.stream(model=MODEL, messages=ASK, max_tokens=1500) as events:
        next(iter(events))
    return {}


def error():
    try:
        client.messages.create(model=NO_MODEL, messages=ASK, max_tokens=5)
    except NotFoundError as found:
        return {"status": found.status_code, "text": str(found)}


run(chat, stream, tools, structured, cancel, error)

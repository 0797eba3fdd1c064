"""The official `openai` library: Chat Completions and Responses."""

from __future__ import annotations

import json
from typing import Literal

from openai import NotFoundError, OpenAI
from pydantic import BaseModel, Field
from scenarios import MODEL, NO_MODEL, QUESTION, URL, WEATHER, forecast, run

client = OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=60)
ASK = [{"role": "user", "content": QUESTION}]
TOOL = {
    "type": "function",
    "function": {"name": "forecast", "description": "Weather of a city.", "parameters": WEATHER},
}


class Trip(BaseModel):
    city: Literal["Tokyo", "Rome"]
    nights: int = Field(ge=1, le=9)


def chat():
    answer = client.chat.completions.create(model=MODEL, messages=ASK, temperature=0, max_tokens=30)
    return {"text": answer.choices[0].message.content, "tokens": answer.usage.completion_tokens}


def stream():
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        temperature=0,
        max_tokens=30,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, tokens = "", None
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    return {"text": text, "tokens": tokens}


def tools():
    messages = list(ASK)
    first = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        tools=[TOOL],
        tool_choice="required",
        max_tokens=200,
        parallel_tool_calls=False,
    )
    message = first.choices[0].message
    call = message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    messages += [
        message,
        {"role": "tool", "tool_call_id": call.id, "content": forecast(**arguments)},
    ]
    second = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[TOOL], tool_choice="none", max_tokens=20
    )
    return {"calls": [arguments], "text": second.choices[0].message.content}


def structured():
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASK, response_format=Trip, max_tokens=200
    )
    return answer.choices[0].message.parsed.model_dump()


def cancel():
    with client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    ) as chunks:
        next(iter(chunks))
    return {}


def error():
    try:
        client.chat.completions.create(model=NO_MODEL, messages=ASK)
    except NotFoundError as found:
        return {"status": found.status_code, "text": str(found)}


def responses():
    first = client.responses.create(
        model=MODEL, input=QUESTION, temperature=0, max_output_tokens=30
    )
    tool = {"type": "function", "name": "forecast", "parameters": WEATHER, "strict": True}
    asked = client.responses.create(
        model=MODEL,
        input=QUESTION,
        tools=[tool],
        tool_choice="required",
        max_output_tokens=200,
        parallel_tool_calls=False,
    )
    (call,) = [item for item in asked.output if item.type == "function_call"]
    arguments = json.loads(call.arguments)
    result = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": forecast(**arguments),
    }
    last = client.responses.create(
        model=MODEL,
        input=[{"role": "user", "content": QUESTION}, *asked.output, result],
        tools=[tool],
        tool_choice="none",
        max_output_tokens=20,
    )
    return {"text": first.output_text, "calls": [arguments], "last": last.output_text}


run(chat, stream, tools, structured, cancel, error, responses)

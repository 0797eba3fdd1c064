"""`litellm`: the provider `openai` with our address."""

from __future__ import annotations

import json
from typing import Literal

import litellm
from pydantic import BaseModel, Field
from scenarios import MODEL, NO_MODEL, QUESTION, URL, WEATHER, forecast, run

litellm.suppress_debug_info = True
ASK = [{"role": "user", "content": QUESTION}]
TOOL = {"type": "function", "function": {"name": "forecast", "parameters": WEATHER}}


class Trip(BaseModel, extra="forbid"):
    city: Literal["Tokyo", "Rome"]
    nights: int = Field(ge=1, le=9)


def ask(messages=ASK, model: str = MODEL, **fields):
    return litellm.completion(
        model=f"openai/{model}",
        api_base=URL + "/v1",
        api_key="none",
        messages=messages,
        num_retries=0,
        timeout=60,
        **fields,
    )


def chat():
    found = ask(temperature=0, max_tokens=30)
    return {"text": found.choices[0].message.content, "tokens": found.usage.completion_tokens}


def stream():
    text = ""
    for chunk in ask(temperature=0, max_tokens=30, stream=True):
        text += chunk.choices[0].delta.content or ""
    return {"text": text}


def tools():
    message = (
        ask(tools=[TOOL], tool_choice="required", max_tokens=200, parallel_tool_calls=False)
        .choices[0]
        .message
    )
    (call,) = message.tool_calls
    arguments = json.loads(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": forecast(**arguments)}
    second = ask([*ASK, message, result], tools=[TOOL], tool_choice="none", max_tokens=20)
    return {"calls": [arguments], "text": second.choices[0].message.content}


def structured():
    found = ask(response_format=Trip, max_tokens=200)
    return json.loads(found.choices[0].message.content)


def cancel():
    chunks = ask(stream=True, max_tokens=1500, extra_body={"ignore_eos": True})
    next(iter(chunks))
    chunks.completion_stream.close()
    return {}


def error():
    try:
        ask(model=NO_MODEL)
    except litellm.NotFoundError as found:
        return {"status": found.status_code, "text": str(found)}


run(chat, stream, tools, structured, cancel, error)

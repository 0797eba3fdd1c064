"""`llama-index-llms-openai-like`: a chat model with tools and typed answers."""

from __future__ import annotations

from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from openai import NotFoundError
from pydantic import BaseModel, Field
from scenarios import MODEL, NO_MODEL, QUESTION, URL, run
from scenarios import forecast as answer

ASK = [ChatMessage(role="user", content=QUESTION)]
CALLS: list[dict] = []


class Trip(BaseModel, extra="forbid"):
    """A journey."""

    city: Literal["Tokyo", "Rome"]
    nights: int = Field(ge=1, le=9)


class Place(BaseModel, extra="forbid"):
    city: Literal["Tokyo", "Rome"]
    days: Literal[1, 2, 3]


def forecast(city: str, days: int) -> str:
    """Weather of a city."""
    CALLS.append({"city": city, "days": days})
    return answer(city, days)


def model(name: str = MODEL, **fields):
    return OpenAILike(
        model=name,
        api_base=URL + "/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
        timeout=60,
        **fields,
    )


def chat():
    return {"text": model(temperature=0, max_tokens=30).chat(ASK).message.content}


def stream():
    pieces = model(temperature=0, max_tokens=30).stream_chat(ASK)
    return {"text": "".join(piece.delta or "" for piece in pieces)}


def tools():
    CALLS.clear()
    made = model(max_tokens=200)
    tool = FunctionTool.from_defaults(forecast, fn_schema=Place)
    first = made.chat_with_tools(
        [tool], chat_history=ASK, tool_required=True, allow_parallel_tool_calls=False
    )
    history = [*ASK, first.message]
    for call in made.get_tool_calls_from_response(first):
        result = tool.call(**call.tool_kwargs)
        history.append(
            ChatMessage(
                role="tool", content=str(result), additional_kwargs={"tool_call_id": call.tool_id}
            )
        )
    second = model(max_tokens=20).chat(history)
    return {"calls": list(CALLS), "text": second.message.content}


def structured():
    found = model(max_tokens=200).as_structured_llm(Trip).chat(ASK)
    return found.raw.model_dump()


def cancel():
    pieces = model(max_tokens=1500, additional_kwargs={"extra_body": {"ignore_eos": True}})
    running = pieces.stream_chat(ASK)
    next(running)
    running.close()
    return {}


def error():
    try:
        model(NO_MODEL).chat(ASK)
    except NotFoundError as found:
        return {"status": found.status_code, "text": str(found)}


run(chat, stream, tools, structured, cancel, error)

"""`langchain-openai`: a chat model, and an agent of `langchain` with a tool."""

from __future__ import annotations

from typing import Literal

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import NotFoundError
from pydantic import BaseModel, Field
from scenarios import MODEL, NO_MODEL, QUESTION, URL, run
from scenarios import forecast as answer

CALLS: list[dict] = []


class Trip(BaseModel):
    """A journey."""

    city: Literal["Tokyo", "Rome"]
    nights: int = Field(ge=1, le=9)


@tool
def forecast(city: Literal["Tokyo", "Rome"], days: Literal[1, 2, 3]) -> str:
    """Weather of a city."""
    CALLS.append({"city": city, "days": days})
    return answer(city, days)


def model(name: str = MODEL, **fields):
    return ChatOpenAI(
        model=name, base_url=URL + "/v1", api_key="none", max_retries=0, timeout=60, **fields
    )


def chat():
    found = model(temperature=0, max_tokens=30).invoke(QUESTION)
    return {"text": found.content, "tokens": found.usage_metadata["output_tokens"]}


def stream():
    pieces = list(model(temperature=0, max_tokens=30, stream_usage=True).stream(QUESTION))
    tokens = [each.usage_metadata["output_tokens"] for each in pieces if each.usage_metadata]
    return {"text": "".join(each.content for each in pieces), "tokens": tokens[-1]}


def tools():
    CALLS.clear()
    asked = [HumanMessage(QUESTION)]
    forced = model(max_tokens=200).bind_tools(
        [forecast], tool_choice="required", strict=True, parallel_tool_calls=False
    )
    first = forced.invoke(asked)
    results = [
        ToolMessage(forecast.invoke(call["args"]), tool_call_id=call["id"])
        for call in first.tool_calls
    ]
    again = model(max_tokens=20).bind_tools([forecast], tool_choice="none")
    second = again.invoke([*asked, first, *results])
    return {"calls": list(CALLS), "text": second.content}


def agent():
    """The agent decides itself; with this model it answers, and the messages pass through its graph."""
    made = create_agent(model(max_tokens=40, temperature=0), tools=[forecast])
    found = made.invoke({"messages": [("user", QUESTION)]})
    return {"text": found["messages"][-1].content}


def structured():
    return model(max_tokens=200).with_structured_output(Trip).invoke(QUESTION).model_dump()


def cancel():
    pieces = model(max_tokens=1500, extra_body={"ignore_eos": True}).stream(QUESTION)
    next(pieces)
    pieces.close()
    return {}


def error():
    try:
        model(NO_MODEL).invoke(QUESTION)
    except NotFoundError as found:
        return {"status": found.status_code, "text": str(found)}


run(chat, stream, tools, agent, structured, cancel, error)

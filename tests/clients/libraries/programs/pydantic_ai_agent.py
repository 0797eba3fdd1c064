"""`pydantic-ai`: an agent with a tool, structured output and streams."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from scenarios import MODEL, NO_MODEL, QUESTION, URL, run
from scenarios import forecast as answer

CALLS: list[dict] = []
ONE_CALL = {"max_tokens": 200, "parallel_tool_calls": False}


class Trip(BaseModel, extra="forbid"):
    city: Literal["Tokyo", "Rome"]
    nights: int = Field(ge=1, le=9)


def model(name: str = MODEL):
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=URL + "/v1", api_key="none"))


async def chat():
    settings = {"temperature": 0, "max_tokens": 30}
    found = await Agent(model(), model_settings=settings).run(QUESTION)
    return {"text": found.output}


async def stream():
    settings = {"temperature": 0, "max_tokens": 30}
    async with Agent(model(), model_settings=settings).run_stream(QUESTION) as running:
        pieces = [piece async for piece in running.stream_text(delta=True)]
    return {"text": "".join(pieces)}


def forecast(city: Literal["Tokyo", "Rome"], days: Literal[1, 2, 3]) -> str:
    """Weather of a city."""
    CALLS.append({"city": city, "days": days})
    return answer(city, days)


async def tools():
    """An output function is a call that the library demands; the next run replays it with its result."""
    CALLS.clear()
    agent = Agent(model(), output_type=forecast, model_settings=ONE_CALL)
    history = (await agent.run(QUESTION)).all_messages()
    again = await Agent(model(), model_settings={"max_tokens": 20}).run(
        "And then?", message_history=history
    )
    return {"calls": list(CALLS), "text": again.output}


async def structured():
    agent = Agent(model(), output_type=Trip, model_settings={"max_tokens": 200})
    found = await agent.run(QUESTION)
    return found.output.model_dump()


async def cancel():
    settings = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    async with Agent(model(), model_settings=settings).run_stream(QUESTION) as running:
        async for _ in running.stream_text():
            break
    return {}


async def error():
    try:
        await Agent(model(NO_MODEL)).run(QUESTION)
    except ModelHTTPError as found:
        return {"status": found.status_code, "text": str(found)}


run(chat, stream, tools, structured, cancel, error)

"""`openai-agents`: an agent that calls a tool and answers, over Chat Completions and over Responses."""

from __future__ import annotations

from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI, NotFoundError
from pydantic import BaseModel, Field
from scenarios import MODEL, NO_MODEL, QUESTION, URL, run
from scenarios import forecast as answer

set_tracing_disabled(True)
SETTINGS = ModelSettings(temperature=0, max_tokens=30)
CALLS: list[dict] = []


class Trip(BaseModel):
    city: Literal["Tokyo", "Rome"]
    nights: int = Field(ge=1, le=9)


@function_tool
def forecast(city: Literal["Tokyo", "Rome"], days: Literal[1, 2, 3]) -> str:
    """Weather of a city."""
    CALLS.append({"city": city, "days": days})
    return answer(city, days)


def model(kind: type = OpenAIChatCompletionsModel, name: str = MODEL):
    client = AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=60)
    return kind(model=name, openai_client=client)


async def chat():
    found = await Runner.run(Agent("plain", model=model(), model_settings=SETTINGS), QUESTION)
    return {"text": found.final_output}


async def stream():
    running = Runner.run_streamed(Agent("plain", model=model(), model_settings=SETTINGS), QUESTION)
    text = ""
    async for event in running.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    return {"text": text}


async def tools(kind: type = OpenAIChatCompletionsModel):
    CALLS.clear()
    settings = ModelSettings(
        tool_choice="required", parallel_tool_calls=False, max_tokens=200, temperature=0
    )
    agent = Agent("traveller", model=model(kind), tools=[forecast], model_settings=settings)
    found = await Runner.run(agent, QUESTION, max_turns=3)
    return {"calls": list(CALLS), "text": found.final_output}


async def structured():
    settings = ModelSettings(max_tokens=200)
    agent = Agent("planner", model=model(), output_type=Trip, model_settings=settings)
    found = await Runner.run(agent, QUESTION)
    return found.final_output.model_dump()


async def cancel():
    settings = ModelSettings(max_tokens=1500, extra_body={"ignore_eos": True})
    agent = Agent("plain", model=model(), model_settings=settings)
    running = Runner.run_streamed(agent, QUESTION)
    async for event in running.stream_events():
        if event.type == "raw_response_event":
            running.cancel()
            break
    return {}


async def error():
    try:
        await Runner.run(Agent("plain", model=model(name=NO_MODEL)), QUESTION)
    except NotFoundError as found:
        return {"status": found.status_code, "text": str(found)}


async def responses():
    return await tools(OpenAIResponsesModel)


run(chat, stream, tools, structured, cancel, error, responses)

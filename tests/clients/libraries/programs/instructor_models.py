"""`instructor`: typed answers by tools and by JSON schema, also in part."""

from __future__ import annotations

from typing import Literal

import instructor
from openai import NotFoundError, OpenAI
from pydantic import BaseModel, Field
from scenarios import MODEL, NO_MODEL, QUESTION, URL, run

ASK = [{"role": "user", "content": QUESTION}]
plain = OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=60)


class Trip(BaseModel, extra="forbid"):
    city: Literal["Tokyo", "Rome"]
    nights: int = Field(ge=1, le=9)


def ask(mode: instructor.Mode, **fields):
    made = instructor.from_openai(plain, mode=mode)
    options = {
        "model": MODEL,
        "messages": ASK,
        "max_tokens": 200,
        "max_retries": 0,
        "temperature": 0,
    }
    return made.chat.completions.create(response_model=Trip, **(options | fields))


def structured():
    return ask(instructor.Mode.JSON_SCHEMA).model_dump()


def tools():
    return {
        "calls": [ask(instructor.Mode.TOOLS, parallel_tool_calls=False).model_dump()],
        "text": "typed",
    }


def stream():
    made = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
    parts = list(
        made.chat.completions.create_partial(
            response_model=Trip, model=MODEL, messages=ASK, max_tokens=200
        )
    )
    return {"parts": len(parts), "last": parts[-1].model_dump()}


def error():
    try:
        ask(instructor.Mode.JSON_SCHEMA, model=NO_MODEL)
    except Exception as found:
        causes = [found, found.__cause__, found.__context__]
        (cause,) = {each for each in causes if isinstance(each, NotFoundError)} or {found}
        return {"status": getattr(cause, "status_code", 0), "text": str(cause)}


run(structured, tools, stream, error)

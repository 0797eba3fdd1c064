"""Runs the scenarios of one client library against a server and prints a JSON line for each. Client process.

`python PROGRAM.py URL MODEL`: URL without `/v1`. A scenario is a function that returns the compared result, as JSON.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

QUESTION = "What is the capital of Japan?"
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Tokyo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NO_MODEL = "no-such-model"
URL = sys.argv[1] if len(sys.argv) > 1 else ""
MODEL = sys.argv[2] if len(sys.argv) > 2 else ""


def forecast(city: str, days: int) -> str:
    """Return the weather of a city."""
    return f"{city}: {days} days of rain"


def run(*scenarios: Callable[[], Any]) -> None:
    """Run all, each in an event loop of its own if it is a coroutine function."""
    for scenario in scenarios:
        line: dict[str, Any] = {"scenario": scenario.__name__}
        try:
            found = scenario()
            line["result"] = asyncio.run(found) if inspect.iscoroutine(found) else found
        except Exception:
            line["failure"] = traceback.format_exc()
        print(json.dumps(line), flush=True)

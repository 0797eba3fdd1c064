"""Every field of the request types of `openai` and `anthropic`: served, reported as ignored, or rejected by name.

`served_fields.txt` lists the fields that a response need not report, by route: those that have an effect, and those
that change no answer by their definition (accounting, caching, identity). A field that a later version of a client adds
fails here until the server reads, reports or rejects it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import shallow_demo
from environments import HERE
from server_process import ForkedServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
GENERATES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
ROUTES = (*GENERATES, "/v1/embeddings")
KIND = re.compile(r"<([^>]*)>")


class Probe(NamedTuple):
    """One request. `path`: the field that it tries, such as "messages[]<user>.content[]<text>.text"."""

    route: str
    path: str
    body: dict[str, Any]

    @property
    def field(self) -> str:
        """The path without kinds and values."""
        return KIND.sub("", self.path).partition("=")[0]

    @property
    def kinds(self) -> set[str]:
        return {_plain(kind) for kind in KIND.findall(self.path)}

    @property
    def words(self) -> set[str]:
        """Names of the fields and kinds on the path."""
        return {*re.findall(r"[a-z_]+", self.field), *KIND.findall(self.path)}


class Answer(NamedTuple):
    """Status, the parts that `x-tenonry-ignored` names, and the text of an error."""

    status: int
    ignored: list[str]
    error: str


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


@pytest.fixture(scope="module")
def probes() -> dict[str, list[Probe]]:
    """The requests by route."""
    program = str(HERE / "programs" / "request_fields.py")
    ended = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found = defaultdict(list)
    for line in ended.stdout.splitlines():
        probe = Probe(**json.loads(line))
        found[probe.route].append(probe)
    return found


@pytest.fixture(scope="module")
def send(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Probe], Answer]]:
    """Sends a request to a server that generates, or to one that pools."""
    model = shallow_demo.save(tmp_path_factory.mktemp("fields") / "model", num_layers=1)
    common = ("--load-format", "auto", "--device", "cpu")
    template = str(HERE.parent / "agents.jinja")
    generating = ForkedServer(model, *common, "--chat-template", template)
    pooling = ForkedServer(model, *common, "--worker", "pooling")
    try:
        urls = dict.fromkeys(GENERATES, generating.ready().url)
        urls["/v1/embeddings"] = pooling.ready().url
        yield lambda probe: answer_to(probe, urls[probe.route])
    finally:
        generating.close()
        pooling.close()


def answer_to(probe: Probe, url: str) -> Answer:
    data = json.dumps({**probe.body, "model": "tiny"}).encode()
    request = urllib.request.Request(url + probe.route, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()
            named = response.headers.get("x-tenonry-ignored", "")
            return Answer(response.status, named.split(", ") if named else [], "")
    except urllib.error.HTTPError as error:
        error_body = json.loads(error.read())["error"]
        return Answer(error.code, [], error_body["message"])


def served_fields() -> set[tuple[str, str]]:
    """Route and field of each line that is no comment."""
    lines = (HERE / "served_fields.txt").read_text("utf-8").splitlines()
    return {
        (route, field)
        for route, _, field in (line.partition(" ") for line in lines)
        if route.startswith("/")
    }


def is_reported(probe: Probe, parts: list[str]) -> bool:
    """Return True if a part is the field, or holds it."""
    value = probe.path.partition("=")[2]
    for part in parts:
        name, _, kind = part.partition(" (")
        name = re.sub(r"\[\d+\]", "[]", name)
        rest = probe.field.removeprefix(name)
        is_inside = probe.field.startswith(name) and (not rest or rest[0] in ".[")
        if is_inside and (not kind or _plain(kind.rstrip(")")) in {*probe.kinds, _plain(value)}):
            return True
    return False


def fault(probe: Probe, answer: Answer, served: set[tuple[str, str]]) -> str | None:
    """Defect of an answer, or None."""
    if answer.status == 200:
        if (probe.route, probe.field) in served or is_reported(probe, answer.ignored):
            return None
        return f"dropped in silence ({', '.join(answer.ignored) or 'nothing'} reported)"
    if answer.status != 400:
        return f"status {answer.status}: {answer.error}"
    if "literal[" in answer.error or not any(word in answer.error for word in probe.words):
        return f"refused without its name: {answer.error}"
    return None


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("route", ROUTES)
def test_every_field_is_served_reported_or_refused_by_name(route, probes, send):
    served = served_fields()
    assert len(probes[route]) > 5
    faults = [
        f"{probe.path}: {wrong}"
        for probe in probes[route]
        if (wrong := fault(probe, send(probe), served))
    ]
    assert not faults, "\n".join(faults)


def test_list_of_served_fields_names_fields_of_the_clients(probes):
    known = {(route, probe.field) for route, found in probes.items() for probe in found}
    assert served_fields() <= known

"""Routes of operators take fields in the query, as vLLM's do, in a body, or in both."""

from __future__ import annotations

from typing import Any

import pytest

KEY = {"authorization": "Bearer k"}


class Operations:
    """Engine operations called by the routes."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.calls = {"operations": self}
        self.is_paused = False

    async def sleep(self, level: int) -> None:
        self.asked.append(("sleep", level))

    async def wake_up(self, tags: Any) -> None:
        self.asked.append(("wake_up", tags))

    async def pause_generation(self, **fields: bool) -> None:
        self.asked.append(("pause", fields))
        self.is_paused = True

    async def hold(self) -> None:
        self.asked.append("hold")

    async def resume_generation(self) -> None:
        self.asked.append("resume")

    async def reset_prefix_cache(self, running: bool, connector: bool) -> bool:
        self.asked.append(("reset", running, connector))
        return True

    async def abort(self, request_ids: Any) -> None:
        self.asked.append(("abort", request_ids))

    async def abort_all(self) -> None:
        self.asked.append("abort_all")

    async def scale(self, size: int, drain_timeout: float) -> None:
        self.asked.append(("scale", size, drain_timeout))


class Operated:
    """The server over such an engine."""

    def __init__(self, make_api: Any, **settings: Any) -> None:
        self.engine = Operations()
        self.api = make_api(enable_operator_routes=True, api_key=("k",), **settings)
        self.api.state.attach(self.engine)
        self.engine.errored = False

    def post(self, path: str, body: Any = None, **keywords: Any) -> Any:
        if body is None:
            return self.api.request("POST", path, headers=KEY, **keywords)
        return self.api.post(path, body, headers=KEY, **keywords)


@pytest.fixture
def operated(make_api):
    return Operated(make_api)


KEEP = {"wait_for_inflight_requests": False, "clear_cache": True, "keep": True}
ABORT = {**KEEP, "keep": False}


@pytest.mark.parametrize("body", [None, {}])
@pytest.mark.parametrize(
    ("path", "call"),
    [
        ("/sleep?level=2", ("sleep", 2)),
        ("/sleep", ("sleep", 1)),
        ("/wake_up?tags=weights&tags=kv_cache", ("wake_up", ["weights", "kv_cache"])),
        ("/wake_up?tags=weights", ("wake_up", ["weights"])),
        ("/wake_up", ("wake_up", None)),
        ("/pause?mode=abort", ("pause", ABORT)),
        ("/pause?mode=abort&clear_cache=false", ("pause", {**ABORT, "clear_cache": False})),
        ("/pause?wait_for_inflight_requests=true",
         ("pause", {**ABORT, "wait_for_inflight_requests": True})),
        ("/pause", ("pause", KEEP)),
        ("/resume", "resume"),
        ("/reset_prefix_cache?reset_running_requests=true", ("reset", True, False)),
        ("/abort_requests?request_ids=a&request_ids=b", ("abort", ["a", "b"])),
        ("/abort_requests", "abort_all"),
        ("/scale?size=2&drain_timeout=1.5", ("scale", 2, 1.5)),
    ],
)  # fmt: skip
def test_fields_may_stand_in_the_query(path, call, body, operated):
    response = operated.post(path, body)
    assert response.status_code == 200, response.text
    assert operated.engine.asked == [call]


def test_query_and_body_add_up(operated):
    assert operated.post("/pause?mode=abort", {"clear_cache": False}).status_code == 200
    assert (
        operated.post("/pause?mode=abort", {"mode": "abort", "clear_cache": None}).status_code
        == 200
    )
    assert operated.engine.asked == [("pause", {**ABORT, "clear_cache": False}), ("pause", ABORT)]


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/pause?mode=abort", {"mode": "keep"}, "mode", "the query and the body differ"),
        ("/pause?mode=never", None, "mode", "not 'never'"),
        ("/pause?mod=abort", None, "mod", "did you mean mode?"),
        ("/pause?zebra=1", {}, "zebra", "this request has no such field"),
        ("/pause?mode=keep&mode=abort", None, "mode", "2 times"),
        ("/pause?mode=keep&wait_for_inflight_requests=1", None, None, "mode wait, not keep"),
        ("/sleep?level=x", None, "level", "not 'x'"),
        ("/sleep?level=9", None, "level", "less than or equal to 2"),
        ("/sleep?level=", None, "level", "not ''"),
        ("/scale", None, "size", "is missing"),
        ("/scale?size=2", {"zebra": 1}, "zebra", "this request has no such field"),
        ("/replace?changes=x", None, "changes", "not 'x'"),
    ],
)
def test_faults_are_named(path, body, param, message, operated):
    response = operated.post(path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert message in error["message"]
    assert error["param"] == param
    assert not operated.engine.asked


def test_body_of_another_kind_is_refused(operated):
    response = operated.post("/pause?mode=abort", content=b"mode=keep")
    assert response.status_code == 415
    assert not operated.engine.asked


def test_pause_is_seen(operated):
    def paused() -> Any:
        return operated.api.get("/is_paused", headers=KEY).json()

    assert paused() == {"is_paused": False}
    operated.post("/pause")
    assert paused() == {"is_paused": True}


def test_without_a_key_there_is_no_answer(operated):
    assert operated.api.request("POST", "/pause?mode=abort").status_code == 401
    assert operated.api.get("/is_paused").status_code == 401


def test_several_servers_hold_the_engines_which_any_of_them_lets_go(make_api):
    """A pause of one server's admission ended only where the request to resume came to the same server."""
    operated = Operated(make_api, api_server_count=2)
    assert operated.post("/pause").status_code == 200
    assert operated.engine.asked == ["hold"]
    for path in ("/pause?mode=abort", "/abort_requests"):
        assert "there are 2 API servers" in operated.post(path).text
    assert operated.api.get("/is_paused", headers=KEY).status_code == 400


def test_server_info_has_the_settings_but_no_options_of_plugins(make_api):
    secret = {"name": "fake", "options": {"token": "hidden"}}
    options = {"api_key": ("k",), "enable_operator_routes": True}
    api = make_api(config={"max_num_seqs": 7, "kv_connector": secret}, **options)
    assert api.get("/server_info").status_code == 401
    answer = api.get("/server_info", headers=KEY)
    assert answer.json()["config"]["max_num_seqs"] == 7
    assert answer.json()["version"]
    assert "hidden" not in answer.text

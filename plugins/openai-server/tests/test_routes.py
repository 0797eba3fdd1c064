"""The other routes, the phases of the server, and OpenAI's error shape wherever something is wrong."""

from __future__ import annotations

import asyncio
import json

import pytest

from tenonry.errors import EngineDeadError, EngineGenerateError
from tenonry.version import __version__
from tenonry_openai_server import health
from tenonry_openai_server.state import Phase


def error_of(response) -> dict:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_models(make_api):
    api = make_api(config={"served_model_name": ("one", "org/two")})
    listing = api.get("/v1/models").json()
    assert listing["object"] == "list"
    assert [card["id"] for card in listing["data"]] == ["one", "org/two"]
    card = api.get("/v1/models/org/two").json()
    assert (card["object"], card["root"], card["max_model_len"]) == ("model", "org/two", 100)
    missing = api.get("/v1/models/three")
    assert (missing.status_code, error_of(missing)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("name", [None, ""])
def test_no_name_is_the_first_one(make_api, name):
    api = make_api(config={"served_model_name": ("one", "two")})
    answer = api.post("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1})
    assert answer.json()["model"] == "one"


def test_models_with_a_slash_are_the_list(api):
    assert api.get("/v1/models/").json() == api.get("/v1/models").json()


@pytest.mark.parametrize(
    "path",
    [
        "/chat/completions",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1/v1/chat/completions",
        "/openai/deployments/fake/chat/completions",
    ],
)
def test_path_with_another_base_is_answered_with_the_route(api, path):
    answer = api.post(path, {"messages": [{"role": "user", "content": "a"}]})
    assert (answer.status_code, error_of(answer)["code"]) == (404, "unknown_url")
    assert "did you mean /v1/chat/completions?" in error_of(answer)["message"]


def test_path_that_no_route_fits_names_the_list(api):
    assert "/openapi.json lists" in error_of(api.post("/api/chat", {}))["message"]


def test_model_cards_do_not_show_where_the_model_is(make_api):
    api = make_api(config={"served_model_name": ("mine",)})
    assert api.engine.model.name not in api.get("/v1/models").text
    assert api.get("/v1/models").json()["data"][0]["root"] == "mine"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_ping_is_the_health_of_the_engines(api, method):
    assert api.request(method, "/ping").status_code == 200
    api.state.phase = Phase.DEAD
    assert api.request(method, "/ping").status_code == 503


def test_load_counts_the_running_requests(api):
    assert api.get("/load").json() == {"server_load": api.engine.num_unfinished_requests}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"prompt": "a", "max_tokens": 2}, "/v1/completions"),
        ({"messages": [{"role": "user", "content": "a"}]}, "/v1/chat/completions"),
        ({"prompt": "a", "max_tokens": -1}, "/v1/completions"),
    ],
)
def test_invocations_choose_the_route_by_the_body(api, body, path):
    found, wanted = api.post("/invocations", body), api.post(path, body)
    assert found.status_code == wanted.status_code
    if found.status_code == 200:
        assert found.json()["choices"] == wanted.json()["choices"]
    else:
        assert found.json() == wanted.json()


@pytest.mark.parametrize("body", [{"input": "a"}, [], "a"])
def test_invocations_without_a_prompt_are_refused(api, body):
    answer = api.post("/invocations", body)
    assert (answer.status_code, error_of(answer)["code"]) == (400, "invalid_request")


RANK = {
    "architecture": "LlamaForCausalLM",
    "worker": "torch",
    "num_parameters": 1000,
    "groups": [
        {"layers": ["a", "b"], "bytes_per_token": 64},
        {"layers": ["c"], "kind": "recurrent", "state_bytes": 12},
    ],
    "features": {"dtype": "float32", "lora": False},
}


def test_a_card_says_what_the_workers_know(api):
    """Two ranks, each with its own part of the cache."""
    api.engine.rpc = [RANK, RANK]
    card = api.get("/v1/models/fake").json()
    assert (card["architecture"], card["worker"]) == ("LlamaForCausalLM", "torch")
    assert card["num_parameters"] == 1000
    assert card["kv_bytes_per_token"] == 128
    assert card["state_bytes_per_sequence"] == 24
    assert card["features"] == {"dtype": "float32", "lora": False}
    assert api.get("/v1/models").json()["data"][0] == card
    assert api.engine.rpc_calls == ["model_facts"], "the workers are asked once"


def test_workers_that_say_nothing_are_not_asked_again(api):
    for _ in range(2):
        card = api.get("/v1/models/fake").json()
        assert card.keys() == {
            "id",
            "object",
            "created",
            "owned_by",
            "root",
            "parent",
            "max_model_len",
        }
    assert len(api.engine.rpc_calls) == 1


def test_an_answer_that_comes_late_is_asked_for_again(api):
    api.engine.rpc = TimeoutError()
    assert "worker" not in api.get("/v1/models/fake").json()
    api.engine.rpc = [RANK]
    assert api.get("/v1/models/fake").json()["worker"] == "torch"


def test_tokenize_text_and_back(api):
    answer = api.post("/tokenize", {"prompt": "hé", "return_token_strs": True}).json()
    assert answer == {
        "count": 3,
        "max_model_len": 100,
        "tokens": [1, 104, 233],
        "token_strs": ["<s>", "h", "é"],
    }
    assert api.post("/tokenize", {"prompt": "h", "add_special_tokens": False}).json()["tokens"] == [
        104
    ]
    assert api.post("/detokenize", {"tokens": [104, 233]}).json() == {"prompt": "hé"}


def test_tokenize_chat(api):
    body = {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": False}
    assert api.post("/tokenize", body).json()["tokens"] == [ord(c) for c in "user: x"]
    assert api.post("/tokenize", body | {"add_special_tokens": True}).json()["tokens"][0] == 1


def test_tokenize_takes_null_for_the_other_of_the_two(api):
    messages = [{"role": "user", "content": "x"}]
    given = [{"prompt": "x: y", "messages": None}, {"prompt": None, "messages": messages}]
    assert [api.post("/tokenize", body).status_code for body in given] == [200, 200]
    refused = api.post("/v1/chat/completions", {"messages": None})
    assert (refused.status_code, error_of(refused)["param"]) == (400, "messages")


@pytest.mark.parametrize(
    "body", [{}, {"prompt": "a", "messages": [{"role": "user", "content": "x"}]}]
)
def test_tokenize_wants_one_of_two(body, api):
    response = api.post("/tokenize", body)
    assert response.status_code == 400
    assert "either prompt or messages" in error_of(response)["message"]


def test_version_needs_no_engine(api):
    api.state.attached = None
    assert api.get("/version").json() == {"version": __version__}


def test_phases_show_in_health_and_readiness(api):
    def seen() -> tuple[int, int, int]:
        completion = api.post("/v1/completions", {"prompt": "a"})
        return api.get("/health").status_code, api.get("/ready").status_code, completion.status_code

    assert seen() == (200, 200, 200)
    api.engine.recovering = True
    assert seen() == (200, 503, 200)
    answer = api.get("/ready")
    assert answer.json() == {"status": "recovering"}
    assert answer.headers["retry-after"] == "2"
    api.engine.recovering = False
    api.state.phase = Phase.DRAINING
    assert seen() == (200, 503, 503)
    api.state.phase = Phase.READY
    api.engine.dead = True
    assert seen() == (503, 503, 503)
    assert api.get("/ready").json() == {"status": "dead"}
    api.state.phase, api.state.attached = Phase.STARTING, None
    assert seen() == (503, 503, 503)
    assert api.get("/health").json() == {"status": "starting"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EngineDeadError("engine 0 did not answer within 5 s"), "engine 0 did not answer"),
        (EngineGenerateError("rank 1 failed at 0x7f001122"), "rank 1 failed"),
        (RuntimeError("secret"), "log says more"),
    ],
)
def test_health_asks_the_engines_and_says_why_not(error, reason, api, monkeypatch, caplog):
    async def fail() -> None:
        raise error

    monkeypatch.setattr(api.engine, "check_health", fail)
    response = api.get("/health")
    assert response.status_code == 503
    assert response.json()["status"] == "unhealthy"
    assert reason in response.json()["reason"]
    assert "0x7f" not in response.text
    assert "secret" not in response.text
    assert ("secret" in caplog.text) is isinstance(error, RuntimeError)


def test_busy_engine_does_not_delay_a_probe(api, monkeypatch):
    """A flood holds back the engine's answer; the last one holds until the check ends."""
    monkeypatch.setattr(health, "ANSWER_S", 0.01)
    asked = []

    async def scenario() -> list[int]:
        answered = asyncio.Event()

        async def check_health() -> None:
            asked.append(1)
            await answered.wait()
            raise EngineDeadError("engine 0 is not healthy")

        monkeypatch.setattr(api.engine, "check_health", check_health)
        statuses = [(await api.send("GET", "/health")).status_code for _ in range(3)]
        answered.set()
        await asyncio.sleep(0)
        monkeypatch.setattr(health, "ANSWER_S", 10.0)  # an answer that is there is waited for
        return [*statuses, (await api.send("GET", "/health")).status_code]

    assert api.run(scenario()) == [200, 200, 200, 503]
    assert len(asked) == 2


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/v1/models/fake"])
def test_head_has_the_status_of_get(path, api):
    assert api.request("HEAD", path).status_code == 200
    api.state.phase, api.state.attached = Phase.STARTING, None
    assert api.request("HEAD", path).status_code == 503


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.DRAINING, Phase.DEAD])
def test_refusal_names_the_phase_and_when_to_come_again(phase, api):
    api.state.phase, api.state.attached = phase, None
    response = api.post("/v1/chat/completions", {})
    assert response.status_code == 503
    assert error_of(response)["code"] == {"dead": "engine_dead"}.get(phase.value, phase.value)
    assert int(response.headers["retry-after"]) >= 1
    assert api.get("/v1/models").status_code == 503


def test_metrics_come_from_the_stat_logger_that_renders(api):
    class Quiet:
        pass

    class Rendering:
        def render(self):
            return b"# TYPE x counter\nx 1\n", "text/plain; version=1.0.0; charset=utf-8"

    missing = api.get("/metrics")
    assert (missing.status_code, error_of(missing)["code"]) == (404, "no_metrics")
    assert "--stat-logger prometheus" in error_of(missing)["message"]
    api.engine.stat_loggers = {"console": Quiet(), "prometheus": Rendering()}
    response = api.get("/metrics")
    assert response.content.endswith(b"x 1\n")
    assert response.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/v1/responses", "/rerank", "/docs", "/redoc", "/v1/completions/"]
)
def test_unknown_route_says_so_in_openais_shape(path, api):
    response = api.post(path, {"input": "x"})
    assert response.status_code == 404
    error = error_of(response)
    assert error["code"] == "unknown_url"
    assert path in error["message"]


def test_wrong_method_says_so_in_openais_shape(api):
    response = api.get("/v1/completions")
    assert response.status_code == 405
    assert error_of(response)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"]
)
def test_other_content_types_are_refused(kind, api):
    """A page of another origin can send these without asking first."""
    response = api.request(
        "POST", "/v1/completions", content=b'{"prompt":"a"}', headers={"content-type": kind}
    )
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]
    assert not api.engine.received


def test_client_request_id_is_echoed_and_never_used(api):
    response = api.post("/v1/completions", {"prompt": "a"}, headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    assert "mine-1" not in api.engine.received[0].request_id
    odd = api.post("/v1/completions", {"prompt": "a"}, headers={"x-request-id": "a" * 500})
    assert odd.headers["x-request-id"] != "a" * 500
    assert len(odd.headers["x-request-id"]) == 32


def test_origin_of_a_request_travels_with_it(api):
    headers = {"traceparent": "00-abc-def-01", "X-Data-Parallel-Rank": "1"}
    api.post("/v1/completions", {"prompt": "a"}, headers=headers)
    (call,) = api.engine.received
    assert call.fields["trace_headers"] == {"traceparent": "00-abc-def-01"}
    assert call.fields["data_parallel_rank"] == 1
    bad = api.post("/v1/completions", {"prompt": "a"}, headers={"X-Data-Parallel-Rank": "-1"})
    assert bad.status_code == 400


def test_kv_transfer_params_need_a_connector(make_api):
    body = {"prompt": "a", "kv_transfer_params": {"remote": "x"}}
    assert make_api().post("/v1/completions", body).status_code == 400
    api = make_api(config={"kv_connector": "some"})
    assert api.post("/v1/completions", body).status_code == 200
    assert api.engine.received[0].fields["kv_transfer_params"] == {"remote": "x"}


@pytest.mark.parametrize(("unknown_fields", "others"), [("ignore", None), ("refuse", False)])
def test_openapi_document_names_every_route_and_resolves(unknown_fields, others, make_api):
    api = make_api(unknown_fields=unknown_fields)
    document = api.get("/openapi.json").json()
    assert {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/models",
        "/tokenize",
        "/metrics",
    } <= set(document["paths"])
    schemas = document["components"]["schemas"]
    text = json.dumps(document)
    for reference in {
        part.split('"')[0] for part in text.split('"$ref": "#/components/schemas/')[1:]
    }:
        assert reference in schemas
    temperature = schemas["CompletionRequest"]["properties"]["temperature"]["anyOf"][0]
    assert (temperature["minimum"], temperature["maximum"]) == (0, 100)
    body = schemas["CompletionRequest"]
    assert "user" in body["properties"], "it is taken, and changes nothing"
    assert body.get("additionalProperties") is others
    assert "http" not in text.replace("https://json-schema.org", "")
    media = {
        path: set(route["responses"]["200"]["content"]) for path, (route,) in _routes(document)
    }
    assert "text/plain" in media["/metrics"]
    assert "text/event-stream" in media["/v1/completions"]


def _routes(document):
    return [(path, list(methods.values())) for path, methods in document["paths"].items()]


def test_broken_route_answers_in_openais_shape_without_its_text(api, monkeypatch, caplog):
    monkeypatch.setattr(type(api.engine), "model", property(lambda self: 1 / 0), raising=False)
    del api.engine.__dict__["model"]
    response = api.get("/v1/models")
    assert response.status_code == 500
    assert error_of(response)["code"] == "internal_error"
    assert "ZeroDivisionError" in caplog.text
    assert response.headers["x-request-id"] in response.text


def test_browsers_of_allowed_origins_may_ask(make_api):
    api = make_api(allowed_origins=("http://page.test",), api_key=("k",))
    headers = {"origin": "http://page.test", "access-control-request-method": "POST"}
    assert api.request("OPTIONS", "/v1/completions", headers=headers).status_code == 200
    refused = api.post("/v1/completions", {"prompt": "a"}, headers={"origin": "http://page.test"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "http://page.test"

"""Requests of a server of several models: names, bodies, operator routes, metrics, clients that leave."""

from __future__ import annotations

import asyncio
import json

from tenonry_openai_server.hosting.metrics import joined


def test_models_are_listed_with_their_status_under_both_paths(make_host):
    api = make_host(pin_model="b").start()
    first, second = (api.run(api.send("GET", path)) for path in ("/models", "/v1/models"))
    assert first.json() == second.json()
    a, b, _ = first.json()["data"]
    assert (a["id"], a["object"], a["status"], a["pinned"]) == ("a", "model", "unloaded", False)
    assert (b["status"], b["pinned"], b["num_requests"]) == ("ready", True, 0)
    assert a["max_model_len"] == b["max_model_len"] == 100
    assert b["memory_bytes"] == 10
    assert api.run(api.send("GET", "/v1/models/b")).json() == b


def test_every_route_of_a_model_finds_it_by_name(make_host):
    api = make_host().start()
    chat = {"model": "b", "messages": [{"role": "user", "content": "hi"}]}
    answer = api.run(api.send("POST", "/v1/chat/completions", json=chat))
    assert answer.json()["choices"][0]["message"]["content"] == "I am b."
    tokens = api.run(api.send("POST", "/tokenize", json={"model": "c", "prompt": "ab"}))
    assert tokens.json()["count"] == 3
    assert api.starter.started == ["b", "c"]


def test_a_query_names_the_model_and_is_not_passed_on(make_host):
    api = make_host().start()
    answer = api.run(api.send("POST", "/v1/completions?model=c", json={"prompt": "ab"}))
    assert answer.json()["choices"][0]["text"] == "I am c."
    assert "x-tenonry-ignored" not in answer.headers


def test_get_loads_nothing(make_host):
    api = make_host().start()
    assert api.run(api.send("GET", "/openapi.json")).status_code == 200
    assert api.run(api.send("GET", "/nothing")).status_code == 404
    assert api.starter.started == []


def test_what_is_no_json_is_refused_before_a_model_loads(make_host):
    api = make_host().start()
    kind = {"content-type": "application/json"}
    bad = api.run(api.send("POST", "/v1/completions", content=b'{"model":', headers=kind))
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_json")
    kind = {"content-type": "text/plain"}
    plain = api.run(api.send("POST", "/v1/completions", content=b"{}", headers=kind))
    assert plain.status_code == 415
    assert api.starter.started == []


def test_a_post_to_no_route_loads_nothing(make_host):
    api = make_host().start()
    body = {"model": "b", "prompt": "ab"}
    unknown = api.run(api.send("POST", "/v1/nothing", json=body))
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_url")
    wrong = api.run(api.send("POST", "/openapi.json?model=b", json=body))
    assert wrong.status_code == 405
    kind = {"content-type": "text/plain"}
    plain = api.run(api.send("POST", "/v1/completions?model=b", content=b"{}", headers=kind))
    assert plain.status_code == 415
    assert api.starter.started == []


def test_ping_takes_both_methods(make_host):
    api = make_host().start()
    for method in ("GET", "POST"):
        assert api.run(api.send(method, "/ping")).json() == {"status": "ok"}
    assert api.run(api.send("PUT", "/ping")).status_code == 405
    assert api.starter.started == []


def test_the_card_of_a_ready_model_has_the_facts_of_its_workers(make_host):
    api = make_host(pin_model="b").start()
    facts = {"architecture": "Fake", "worker": "w", "num_parameters": 7, "weight_bytes": 0}
    api.models["b"].engine.rpc = [facts]
    a, b, _ = api.run(api.send("GET", "/v1/models")).json()["data"]
    assert (b["architecture"], b["num_parameters"], b["kv_bytes_per_token"]) == ("Fake", 7, 0)
    assert "num_parameters" not in a


def test_a_wrong_method_and_a_number_as_a_name_keep_the_shape_of_errors(make_host):
    api = make_host().start()
    wrong = api.run(api.send("POST", "/models", json={}))
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    number = api.run(api.send("POST", "/v1/completions", json={"model": 7, "prompt": "x"}))
    assert (number.status_code, number.json()["error"]["param"]) == (400, "model")


def test_parts_in_vain_are_named_and_counted_with_the_model(make_host):
    api = make_host().start()
    answer = api.run(api.complete("b", unheard_of=1))
    assert answer.headers["x-tenonry-ignored"] == "unheard_of"
    assert api.models["b"].engine.num_ignored_fields == 1


def test_readiness_waits_for_the_pinned_models(make_host):
    api = make_host(pin_model="a")
    assert api.run(api.send("GET", "/ready")).status_code == 503
    assert api.run(api.send("GET", "/health")).status_code == 200
    early = api.run(api.complete("b"))
    assert (early.status_code, early.json()["error"]["code"]) == (503, "starting")
    api.start()
    assert api.run(api.send("GET", "/ready")).json() == {"status": "ready"}


def test_a_client_that_leaves_stops_waiting_for_the_load(make_host):
    api = make_host("a").start()
    api.starter.gate.clear()

    async def scenario():
        gone = asyncio.Event()
        messages = [
            {"type": "http.request", "body": json.dumps({"model": "a", "prompt": "x"}).encode()}
        ]

        async def receive():
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        sent = []

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1), "root_path": "",
        }  # fmt: skip
        request = asyncio.create_task(api.app(scope, receive, send))
        await api.until(lambda: api.models["a"].waiting == 1)
        gone.set()
        await request
        users = api.models["a"].users
        api.starter.gate.set()
        await api.until(lambda: api.models["a"].change is None)
        return sent[0]["status"], users, await api.statuses()

    assert api.run(scenario()) == (499, 0, {"a": "ready"})


def test_an_adapter_is_found_by_its_model(make_host):
    api = make_host().start()
    api.models["b"].adapters = frozenset({"poet"})
    card = api.run(api.send("GET", "/v1/models/poet")).json()
    assert (card["id"], card["parent"], card["status"]) == ("poet", "b", "unloaded")
    refused = api.run(api.complete("poet"))
    assert "'poet' is not served here; served: b" in refused.json()["error"]["message"]
    assert api.starter.started == ["b"]


def test_the_page_shows_the_state_of_the_chosen_model(make_host):
    api = make_host(pin_model="b").start()
    assert api.run(api.send("GET", "/")).headers["content-type"].startswith("text/html")
    state = api.run(api.send("GET", "/page/state?model=b"))
    assert (state.status_code, state.json()["num_engines"]) == (200, 1)
    unloaded = api.run(api.send("GET", "/page/state?model=a"))
    assert unloaded.status_code == 503
    assert api.starter.started == ["b"]


PAGE = b"""# HELP x Of a model.
# TYPE x gauge
x{model_name="%b"} %d.0
# HELP process_cpu Of the process.
# TYPE process_cpu counter
process_cpu %d.0
"""


def test_metrics_have_each_family_once_and_the_series_of_all():
    assert joined([PAGE % (b"a", 1, 7), PAGE % (b"b", 2, 8)]).decode().splitlines() == [
        "# HELP x Of a model.",
        "# TYPE x gauge",
        'x{model_name="a"} 1.0',
        'x{model_name="b"} 2.0',
        "# HELP process_cpu Of the process.",
        "# TYPE process_cpu counter",
        "process_cpu 7.0",
    ]
    assert joined([]) == b""


def test_openapi_has_the_routes_of_a_model_and_of_the_host(make_host):
    api = make_host().start()
    document = api.run(api.send("GET", "/openapi.json")).json()
    assert {"/v1/chat/completions", "/v1/models", "/models", "/models/{name}"} <= set(
        document["paths"]
    )
    card = document["paths"]["/models/{name}"]["get"]["responses"]["200"]
    assert card["content"]["application/json"]["schema"]["$ref"].endswith("/ModelCard")
    ids = [get["operationId"] for path in document["paths"].values() for get in path.values()]
    assert len(ids) == len(set(ids))
    assert api.run(api.send("GET", "/openapi.json?model=b")).json() == document
    assert api.run(api.send("GET", "/openapi.json?model=x")).status_code == 404

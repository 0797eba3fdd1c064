"""Loads on request, evictions, idle timeouts, failures and the end, with fake engines."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tenonry_openai_server.hosting.host import ModelHost


def test_a_request_loads_its_model_and_no_other(make_host):
    api = make_host().start()
    assert api.run(api.text("b")) == "I am b."
    assert api.starter.started == ["b"]
    assert api.run(api.statuses()) == {"a": "unloaded", "b": "ready", "c": "unloaded"}


def test_a_request_without_a_name_means_the_first_model(make_host):
    api = make_host().start()
    assert api.run(api.text(None)) == "I am a."
    assert api.run(api.text("")) == "I am a."


def test_concurrent_first_requests_load_once(make_host):
    api = make_host().start()

    async def scenario():
        return await asyncio.gather(*(api.text("a") for _ in range(20)), api.text("b"))

    assert api.run(scenario()) == [*["I am a."] * 20, "I am b."]
    assert sorted(api.starter.started) == ["a", "b"]


def test_an_unknown_model_is_404_with_the_served_names(make_host):
    api = make_host().start()
    error = api.run(api.complete("nope"))
    assert error.status_code == 404
    assert error.json()["error"]["code"] == "model_not_found"
    assert "'nope' is not served here; served: a, b, c" in error.json()["error"]["message"]
    assert api.starter.started == []


def test_the_queue_of_a_load_is_bounded(make_host):
    api = make_host("a", max_load_queue=2).start()
    api.starter.gate.clear()

    async def scenario():
        first = [asyncio.create_task(api.text("a")) for _ in range(2)]
        await api.until(lambda: api.models["a"].waiting == 2)
        refused = await api.complete("a")
        assert await api.statuses() == {"a": "loading"}
        api.starter.gate.set()
        return refused, await asyncio.gather(*first)

    refused, texts = api.run(scenario())
    assert refused.status_code == 429
    assert "max_load_queue=2" in refused.json()["error"]["message"]
    assert texts == ["I am a."] * 2


def test_the_least_recently_used_model_makes_room(make_host):
    api = make_host(model_memory_budget=20).start()

    async def scenario():
        for name in ("a", "b", "a", "c"):
            await api.text(name)
        return await api.statuses()

    assert api.run(scenario()) == {"a": "ready", "b": "unloaded", "c": "ready"}


def test_at_most_max_loaded_models_are_loaded(make_host):
    api = make_host(max_loaded_models=1).start()

    async def scenario():
        await api.text("a")
        engine = api.models["a"].engine
        await api.text("b")
        return engine.was_shut_down, await api.statuses()

    assert api.run(scenario()) == (True, {"a": "unloaded", "b": "ready", "c": "unloaded"})


def test_a_pinned_model_is_loaded_at_the_start_and_stays(make_host):
    api = make_host(pin_model="a", model_memory_budget=20, model_idle_timeout=0.05).start()
    assert api.run(api.statuses())["a"] == "ready"

    async def scenario():
        for name in ("b", "c", "b"):
            await api.text(name)
        await api.until(lambda: api.models["b"].engine is None)
        await api.until(lambda: api.models["b"].change is None)

    api.run(scenario())
    assert api.run(api.statuses()) == {"a": "ready", "b": "unloaded", "c": "unloaded"}
    assert api.starter.started == ["a", "b", "c", "b"]


def test_a_model_in_use_is_not_evicted_and_its_stream_goes_on(make_host):
    api = make_host("a", "b", max_loaded_models=1).start()

    async def scenario():
        await api.text("a")
        engine = api.models["a"].engine
        engine.gate.clear()
        stream = asyncio.create_task(api.text("a"))
        await api.until(lambda: bool(engine.running))
        other = asyncio.create_task(api.text("b"))
        await api.until(lambda: api.models["b"].waiting == 1)
        assert not engine.was_shut_down
        engine.gate.set()
        return await stream, await other

    assert api.run(scenario()) == ("I am a.", "I am b.")


def test_an_eviction_that_takes_longer_than_the_wait_still_makes_room(make_host):
    api = make_host("a", "b", max_loaded_models=1, model_wait_timeout=0).start()

    async def scenario():
        await api.text("a")
        return await api.text("b")

    assert api.run(scenario()) == "I am b."


def test_a_load_that_finds_no_room_in_time_is_refused_with_the_numbers(make_host):
    api = make_host("a", "b", max_loaded_models=1, model_wait_timeout=0.05).start()

    async def scenario():
        await api.text("a")
        engine = api.models["a"].engine
        engine.gate.clear()
        stream = asyncio.create_task(api.text("a"))
        await api.until(lambda: bool(engine.running))
        refused = await api.complete("b")
        engine.gate.set()
        return refused, await stream, await api.text("b")

    refused, *texts = api.run(scenario())
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "5"
    error = refused.json()["error"]
    assert error["code"] == "models_busy"
    assert error["message"].startswith("there is no room for the model 'b', which needs 0.00 GiB")
    assert texts == ["I am a.", "I am b."]


def test_a_model_that_never_fits_is_refused_at_the_request(make_host):
    api = make_host("a", model_memory_budget=9).start()
    refused = api.run(api.complete("a"))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "model_too_large"
    assert "raise --model-memory-budget" in refused.json()["error"]["message"]
    assert api.starter.started == []


def test_an_idle_model_is_unloaded_and_loaded_again(make_host):
    api = make_host("a", model_idle_timeout=0.05).start()

    async def scenario():
        await api.text("a")
        await api.until(lambda: api.models["a"].engine is None)
        await api.until(lambda: api.models["a"].change is None)
        assert await api.statuses() == {"a": "unloaded"}
        return await api.text("a")

    assert api.run(scenario()) == "I am a."


def test_zero_never_unloads(make_host, monkeypatch):
    monkeypatch.setattr("tenonry_openai_server.hosting.host.POLL_S", 0.001)
    api = make_host("a", model_idle_timeout=0).start()

    async def scenario():
        await api.text("a")
        api.models["a"].last_used = 0.0
        await asyncio.sleep(0.05)
        return await api.statuses()

    assert api.run(scenario()) == {"a": "ready"}


def test_a_failed_load_is_shown_and_tried_again_later(make_host, monkeypatch):
    api = make_host("a", "b").start()
    api.starter.failures["a"] = "engine 0 ended with signal 9"
    refused = api.run(api.complete("a"))
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "model_failed"
    assert "engine 0 ended with signal 9" in refused.json()["error"]["message"]
    card = api.run(api.send("GET", "/v1/models/a")).json()
    assert (card["status"], card["reason"]) == ("failed", "engine 0 ended with signal 9")
    assert api.run(api.complete("a")).status_code == 503
    assert api.starter.started == ["a"]
    assert api.run(api.text("b")) == "I am b."
    api.starter.failures.clear()
    monkeypatch.setattr("tenonry_openai_server.hosting.host.RETRY_S", 0.0)
    assert api.run(api.text("a")) == "I am a."


def test_an_engine_that_dies_is_that_of_one_model(make_host, monkeypatch):
    monkeypatch.setattr("tenonry_openai_server.hosting.host.RETRY_S", 0.0)
    api = make_host("a", "b").start()

    async def scenario():
        await asyncio.gather(api.text("a"), api.text("b"))
        dead = api.models["a"].engine
        dead.dead = True
        assert await api.text("b") == "I am b."
        await api.until(lambda: api.models["a"].engine is not dead)
        assert (await api.send("GET", "/health")).status_code == 200
        assert await api.text("a") == "I am a."
        return dead.was_shut_down

    assert api.run(scenario())
    assert api.starter.started.count("a") == 2


def test_a_drain_refuses_requests_and_ends_those_that_wait(make_host):
    api = make_host("a", "b").start()

    async def scenario():
        await api.text("a")
        api.starter.gate.clear()
        waiting = asyncio.create_task(api.complete("b"))
        await api.until(lambda: api.models["b"].waiting == 1)
        drain = asyncio.create_task(api.host.drain(60))
        await api.until(lambda: api.models["a"].engine.is_draining)
        refused = await api.complete("a")
        statuses = await api.statuses()
        api.starter.gate.set()
        return refused, statuses, await waiting, await drain

    refused, statuses, waited, is_drained = api.run(scenario())
    assert [refused.status_code, waited.status_code] == [503, 503]
    assert refused.json()["error"]["code"] == "draining"
    assert statuses["a"] == "draining"
    assert is_drained


def test_a_download_holds_up_no_other_model_and_no_end(make_host):
    api = make_host("a", "b").start()
    api.starter.downloads["a"] = threading.Event()

    async def scenario():
        waiting = asyncio.create_task(api.complete("a"))
        await api.until(lambda: api.models["a"].waiting == 1)
        assert await api.text("b") == "I am b."
        assert await api.host.drain(20)
        return await waiting

    waited = api.run(scenario())
    assert (waited.status_code, waited.json()["error"]["code"]) == (503, "draining")
    api.host.shutdown()
    assert not api.starter.downloads["a"].is_set()
    assert api.models["a"].status == "unloaded"


def test_the_wait_for_room_includes_that_for_another_model(make_host):
    api = make_host(max_loaded_models=1, model_wait_timeout=0).start()
    unloaded = threading.Event()

    async def scenario():
        await api.text("a")
        api.models["a"].engine.shutdown = lambda: unloaded.wait(20)
        first = asyncio.create_task(api.text("b"))
        await api.until(lambda: api.models["a"].status == "draining")
        refused = await api.complete("c")
        assert not first.done()
        unloaded.set()
        return refused.json()["error"]["code"], await first

    assert api.run(scenario()) == ("models_busy", "I am b.")


def test_a_drain_ends_the_wait_for_room(make_host):
    api = make_host("a", "b", max_loaded_models=1).start()

    async def scenario():
        await api.text("a")
        engine = api.models["a"].engine
        engine.gate.clear()
        stream = asyncio.create_task(api.text("a"))
        await api.until(lambda: bool(engine.running))
        other = asyncio.create_task(api.complete("b"))
        await api.until(lambda: api.models["b"].waiting == 1)
        drain = asyncio.create_task(api.host.drain(20))
        refused = await other
        assert not drain.done()
        engine.gate.set()
        return refused, await stream, await drain

    refused, text, is_drained = api.run(scenario())
    assert refused.json()["error"]["code"] == "draining"
    assert (text, is_drained) == ("I am a.", True)


def test_the_end_stops_all_engines(make_host):
    api = make_host("a", "b").start()
    api.run(api.text("a"))
    api.run(api.text("b"))
    engines = [model.engine for model in api.models.values()]
    api.host.shutdown()
    assert all(engine.was_shut_down for engine in engines)


@pytest.mark.parametrize("attribute", ["listen", "drain", "abort_all", "submit", "errored"])
def test_the_host_has_what_the_http_thread_calls_of_an_engine(attribute):
    assert hasattr(ModelHost, attribute)

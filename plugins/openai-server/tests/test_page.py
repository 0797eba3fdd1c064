"""The page at /: headers, keys, `--no-page`; `test_page_in_a_browser.py` has what a browser does with it."""

from __future__ import annotations

import argparse
import re
from types import SimpleNamespace

import pytest

from tenonry_openai_server.command import ServeCommand
from tenonry_openai_server.settings import configs_from_arguments
from tenonry_route_page.route import FILES

KEY = {"Authorization": "Bearer sk-right"}


def test_files_are_small_and_from_the_same_origin(make_api):
    api = make_api(route=("page",))
    answers = {path: api.get(path) for path in FILES}
    assert {answer.status_code for answer in answers.values()} == {200}
    assert sum(len(answer.content) for answer in answers.values()) <= 100_000
    for path, answer in answers.items():
        assert answer.headers["content-security-policy"].startswith("default-src 'self'; ")
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        if not path.endswith(".svg"):
            assert not re.search(r"https?://|innerHTML|insertAdjacentHTML", answer.text), path
    linked = re.findall(r'(?:src|href)="([^"]+)"', answers["/"].text)
    assert linked
    assert {f"/{path}" for path in linked} <= set(FILES)


def test_files_need_no_key_and_the_state_does(make_api):
    api = make_api(route=("page",), api_key=("sk-right",))
    assert {api.get(path).status_code for path in FILES} == {200}
    for path in ("/page/state", "/page/nothing", "/v1/models"):
        assert api.get(path).status_code == 401, path
    assert api.request("POST", "/").status_code == 401
    assert "<html data-needs-key " in api.get("/").text
    assert "data-needs-key" not in make_api(route=("page",)).get("/").text
    state = api.get("/page/state", headers=KEY).json()
    assert (state["num_blocks"], state["max_model_len"], state["decisions"]) == (10, 100, [])
    assert state["plugins"][0]["distribution"] == "fake-dist"


def test_other_host_names_are_rejected(make_api):
    answer = make_api(route=("page",)).get("/", headers={"Host": "evil.test"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "path", ["//", "/page", "/page/", "/page/page.js/", "/page/../v1/models", "/page/PAGE.JS"]
)
def test_files_without_a_key_are_exactly_those_of_the_page(path, make_api):
    api = make_api(route=("page",), api_key=("sk-right",))
    assert api.get(f"http://127.0.0.1{path}").status_code == 401


def test_state_has_the_metrics_of_a_stat_logger_that_renders(make_api):
    api = make_api(route=("page",))
    assert api.get("/page/state").json()["metrics"] == ""
    page = SimpleNamespace(render=lambda: (b"tenonry:num_requests_running 2\n", "text/plain"))
    api.engine.stat_loggers["prometheus"] = page
    assert api.get("/page/state").json()["metrics"] == "tenonry:num_requests_running 2\n"


def settings_of(*flags: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    ServeCommand().add_arguments(parser)
    return configs_from_arguments(parser.parse_args(["fake", *flags]))[1].model_dump()


def test_page_is_on_by_default_and_no_page_leaves_it_out(make_api):
    assert make_api(**settings_of()).get("/").status_code == 200
    for flags in (("--no-page",), ("--no-page", "--route", "page")):
        for path in ("/", "/page/state"):
            assert make_api(**settings_of(*flags)).get(path).status_code in {404, 405}

"""The page at /: headers, keys, `--no-page`, and what a browser does with hostile answers."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tenonry.errors import ConfigError
from tenonry_openai_server.command import ServeCommand
from tenonry_openai_server.settings import configs_from_arguments
from tenonry_route_page.route import FILES

KEY = {"Authorization": "Bearer sk-right"}
HOSTILE = (
    "**a** <img src=x onerror=hit=1>\n- i\n```\n<b>c</b>\n```"  # the fake model has 100 tokens
)


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
    state = api.get("/page/state", headers=KEY).json()
    assert (state["num_blocks"], state["max_model_len"], state["decisions"]) == (10, 100, [])
    assert state["plugins"][0]["distribution"] == "fake-dist"


def test_other_host_names_are_rejected(make_api):
    answer = make_api(route=("page",)).get("/", headers={"Host": "evil.test"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")


def routes_of(*flags: str) -> tuple[str, ...]:
    parser = argparse.ArgumentParser()
    ServeCommand().add_arguments(parser)
    return configs_from_arguments(parser.parse_args(["fake", *flags]))[1].route


def test_page_is_on_by_default_and_no_page_leaves_it_out(make_api):
    assert "page" in routes_of()
    assert "page" not in routes_of("--no-page")
    assert make_api(route=routes_of("--no-page")).get("/").status_code in {404, 405}
    with pytest.raises(ConfigError, match="give one or the other"):
        routes_of("--no-page", "--route", "page")


@pytest.fixture
def browser(tmp_path) -> Iterator[Any]:
    """Headless Chromium that reaches this machine alone."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    flags = (
        "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
        "disable-component-update disable-sync"
    )
    for flag in (*flags.split(), f"user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(f"--{flag}")
    chrome = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.mark.nightly
def test_browser_shows_hostile_answers_as_text(make_live, browser):
    wait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
    live = make_live(route=("page",))
    live.call(lambda: setattr(live.engine, "answer", HOSTILE))
    browser.get(f"{live.url}/")

    def until(script: str) -> Any:
        return wait(browser, 60).until(lambda each: each.execute_script(script))

    until("return document.getElementById('model').options.length === 1")
    browser.find_element("id", "input").send_keys("<i>\n")
    until("return document.querySelector('.assistant code')?.textContent === '<b>c</b>\\n'")
    until("return document.getElementById('stop').hidden")
    shown = browser.find_element("id", "messages")
    assert "<img src=x onerror=hit=1>" in shown.text
    assert "<i>" in shown.text
    assert shown.find_element("css selector", ".assistant strong").text == "a"
    assert shown.find_element("css selector", ".assistant ul li").text == "i"
    assert browser.execute_script("return window.hit ?? 0") == 0
    assert not shown.find_elements("css selector", "script, img, b, i")
    browser.find_element("id", "tab-engine").click()
    until("return document.getElementById('plugins').textContent.includes('fake-dist')")
    urls = browser.execute_script(
        "return performance.getEntriesByType('resource').map(e => e.name)"
    )
    assert urls
    assert all(url.startswith(live.url) for url in urls)
    errors = [each["message"] for each in browser.get_log("browser") if each["level"] == "SEVERE"]
    assert [each for each in errors if "/metrics" not in each] == []  # without a stat logger

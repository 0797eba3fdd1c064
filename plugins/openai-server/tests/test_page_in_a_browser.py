"""The page at / in headless Chromium: hostile answers, stop, edit, images, reasoning, tools, keys, first paint."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.nightly
HOSTILE = (
    "**a** <img src=x onerror=hit=1>\n- i\n```\n<b>c</b>\n```"  # the fake model has 100 tokens
)
OTHER_HOST = "other.test"  # resolved to this machine by the browser
PAINT_S = 0.3  # of a machine with an idle core
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415478da63f8cfc0"
    "000003010100c9fe92ef0000000049454e44ae426082"
)
# The page offers no tools, but shows calls where a server has some of its own: they are added on the way.
WITH_TOOLS = """
const send = window.fetch;
const tools = [{type: "function", function: {name: "look", parameters: {type: "object"}}}];
window.fetch = (path, options) => send(path, options?.body
    ? {...options, body: JSON.stringify({...JSON.parse(options.body), tools})} : options);
"""
# A server of several models, whose one model is loaded by the first answer and then takes images.
SEVERAL_MODELS = """
const send = window.fetch;
let status = "unloaded";
window.fetch = (path, options) => {
    if (path === "v1/models") return Promise.resolve(Response.json({data: [{id: "fake", status}]}));
    if (path.startsWith("page/state")) return Promise.resolve(Response.json({max_images: 1}));
    status = "ready";
    return send(path, options);
};
document.getElementById("model").dispatchEvent(new Event("change"));
"""


class Page:
    """The page of a live server in a browser."""

    def __init__(self, chrome: Any, wait: Any, live: Any) -> None:
        self.chrome, self._wait, self.live = chrome, wait, live
        chrome.get(f"{live.url}/")

    def ready(self) -> Page:
        self.until("return document.getElementById('model').options.length === 1")
        return self

    def until(self, script: str) -> Any:
        return self._wait(self.chrome, 60).until(lambda each: each.execute_script(script))

    def send(self, text: str) -> None:
        self.by_id("input").send_keys(f"{text}\n")

    def answered(self, text: str) -> str:
        """The answer's text, once it has ended and contains `text`."""
        self.until("return document.getElementById('stop').hidden")
        self.until(f"return document.querySelector('.assistant')?.textContent.includes({text!r})")
        return str(self.chrome.find_element("css selector", ".assistant").text)

    def by_id(self, name: str) -> Any:
        return self.chrome.find_element("id", name)

    def all(self, selector: str) -> list[Any]:
        return list(self.chrome.find_elements("css selector", selector))

    def errors(self) -> list[str]:
        log = self.chrome.get_log("browser")
        return [each["message"] for each in log if each["level"] == "SEVERE"]


@pytest.fixture
def open_page(tmp_path, make_live) -> Iterator[Callable[..., Page]]:
    """Opens the page of a server with the given settings in Chromium, which reaches this machine alone."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    wait = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
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
    options.add_argument(f"--host-resolver-rules=MAP {OTHER_HOST} 127.0.0.1")
    chrome = webdriver.Chrome(options, webdriver.ChromeService(driver))

    def make(answer: str = "Hello there.", **settings: Any) -> Page:
        live = make_live(route=("page",), **settings)
        live.call(lambda: setattr(live.engine, "answer", answer))
        return Page(chrome, wait, live)

    yield make
    chrome.quit()


def test_hostile_answers_are_text(open_page):
    page = open_page(HOSTILE).ready()
    page.send("<i>")
    page.until("return document.querySelector('.assistant code')?.textContent === '<b>c</b>\\n'")
    page.until("return document.getElementById('stop').hidden")
    shown = page.by_id("messages")
    assert "<img src=x onerror=hit=1>" in shown.text
    assert "<i>" in shown.text
    assert shown.find_element("css selector", ".assistant strong").text == "a"
    assert shown.find_element("css selector", ".assistant ul li").text == "i"
    assert page.chrome.execute_script("return window.hit ?? 0") == 0
    assert not shown.find_elements("css selector", "script, img, b, i")
    page.by_id("tab-engine").click()
    page.until("return document.getElementById('plugins').textContent.includes('fake-dist')")
    urls = page.chrome.execute_script(
        "return performance.getEntriesByType('resource').map(e => e.name)"
    )
    assert urls
    assert all(url.startswith(page.live.url) for url in urls)
    assert page.errors() == []  # also without a stat logger that renders metrics


def test_figures_are_those_of_the_stat_logger(open_page):
    page = open_page().ready()
    metrics = b'tenonry:num_requests_running{engine="0"} 2\n'
    logger = SimpleNamespace(render=lambda: (metrics, "text/plain"))
    page.live.call(lambda: page.live.engine.stat_loggers.update(prometheus=logger))
    page.by_id("tab-engine").click()
    page.until("return /Rows running\\s*2/.test(document.getElementById('figures').innerText)")
    assert page.errors() == []


@pytest.mark.parametrize("way", ["click", "escape"])
def test_stop_ends_the_answer_in_the_engine(way, open_page, eventually):
    page = open_page().ready()
    page.live.call(lambda: setattr(page.live.engine, "endless", True))
    page.live.call(lambda: setattr(page.live.engine, "step_s", 0.01))
    page.send("on and on")
    page.until("return document.querySelector('.assistant')?.textContent.length > 20")
    if way == "click":
        page.by_id("stop").click()
    else:
        page.by_id("input").send_keys("\ue00c")
    page.until("return document.getElementById('status').textContent === 'Stopped.'")
    eventually(lambda: page.live.engine.ended)
    assert [*page.live.engine.ended.values()] == ["aborted"]
    assert "Hello there" in page.answered("Hello")  # what came before stays
    assert page.errors() == []


def test_edit_takes_the_last_message_back_and_retry_repeats_it(open_page):
    page = open_page().ready()
    page.send("first")
    page.answered("Hello")
    page.by_id("retry").click()
    page.until("return document.getElementById('status').textContent === ''")
    page.answered("Hello")
    page.by_id("edit").click()
    assert page.by_id("input").get_attribute("value") == "first"
    assert not page.all(".assistant, .user")
    page.send(" and second")
    page.answered("Hello")
    prompts = [str(call.prompt) for call in page.live.engine.received]
    assert len(prompts) == 3
    assert prompts[0] == prompts[1]
    assert "user: first and second" in prompts[2]
    assert prompts[2].count("user:") == 1
    assert page.errors() == []


def test_images_are_shown_and_sent(open_page, tmp_path):
    file = tmp_path / "pixel.png"
    file.write_bytes(PIXEL)
    page = open_page(config={"max_images": 1}).ready()
    page.until("return !document.getElementById('image-field').hidden")
    page.by_id("images").send_keys(str(file))
    page.send("see")
    page.answered("Hello")
    [image] = page.all(".user img")
    assert image.get_attribute("src").startswith("data:image/png;base64,")
    assert page.chrome.execute_script("return arguments[0].naturalWidth", image) == 1
    [call] = page.live.engine.received
    assert "*see" in str(call.prompt)  # the fake template shows an image as a star
    assert page.errors() == []


def test_reasoning_is_folded_until_it_is_opened(open_page):
    page = open_page("<think>hm, well</think>Four.", reasoning_parser="think").ready()
    page.send("2 + 2?")
    assert "Four." in page.answered("Four.")
    [fold] = page.all(".assistant details.reasoning")
    assert fold.get_attribute("open") is None
    assert "hm, well" not in fold.text
    fold.find_element("tag name", "summary").click()
    assert "hm, well" in fold.text
    assert page.errors() == []


def test_tool_calls_are_shown_with_their_arguments(open_page):
    call = '<tool_call>{"name": "look", "arguments": {"x": 1}}</tool_call>'
    page = open_page(call, tool_call_parser="hermes").ready()
    page.chrome.execute_script(WITH_TOOLS)
    page.send("look")
    page.answered("look(")
    [shown] = page.all(".assistant pre")
    assert re.fullmatch(r'look\(\{"x": ?1\}\)', shown.text)
    assert page.errors() == []


def test_a_key_is_requested_before_anything_else(open_page):
    page = open_page(api_key=("sk-right",))
    page.until("return !document.getElementById('error').hidden")
    assert page.by_id("error").text == "This server requires an API key; enter it under Settings."
    assert page.chrome.execute_script("return document.activeElement.id") == "api-key"
    page.by_id("api-key").send_keys("sk-right\t")
    page.ready()
    page.until("return document.getElementById('error').hidden")
    page.send("hi")
    assert "Hello there." in page.answered("Hello")
    assert page.errors() == []


def test_another_host_name_is_refused_in_one_sentence(open_page):
    page = open_page()
    page.chrome.get(f"http://{OTHER_HOST}:{page.live.port}/")
    shown = page.chrome.find_element("tag name", "body").text
    assert f"not to '{OTHER_HOST}'; allow it with --allowed-hosts" in shown
    page = open_page(allowed_hosts=(OTHER_HOST,))
    page.chrome.get(f"http://{OTHER_HOST}:{page.live.port}/")
    page.ready()


def test_first_paint_comes_soon(open_page, record_property):
    page = open_page().ready()
    script = "return performance.getEntriesByName('first-paint')[0]?.startTime"
    times = []
    for _ in range(3):
        page.chrome.refresh()
        times.append(page.until(script))
    paint_s = min(times) / 1000
    record_property("first_paint_s", paint_s)
    print(f"first paint after {paint_s:.3f} s")
    assert paint_s <= PAINT_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def test_images_are_offered_once_an_answer_has_loaded_the_model(open_page):
    page = open_page().ready()
    page.chrome.execute_script(SEVERAL_MODELS)
    page.until("return document.getElementById('image-field').hidden")
    page.send("hi")
    page.answered("Hello there.")
    page.until("return !document.getElementById('image-field').hidden")
    assert page.errors() == []

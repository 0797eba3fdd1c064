"""Makes page-chat.png, page-engine.png and site.png in headless Chromium, from real servers and the built site.

Run it as `python docs/drawings/screens.py [chat] [engine] [site]`, without words for all of them, after a change of the
page or the site, and look at the result. It needs chromium, chromedriver and selenium. The site is that of
`python3 dev.py docs`.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from served import ROOT, busy, served

HERE = Path(__file__).resolve().parent
WAIT_S = 120
FLAGS = "headless no-sandbox disable-gpu hide-scrollbars force-color-profile=srgb"
QUESTION = "Name the capital of France."
ANSWER = "The capital of France is Paris."
SITE_PAGE = "how-to/choose-a-policy/"
ENGINE_FLAGS = ("--max-num-seqs", "8", "--decision-steps", "200")


@contextlib.contextmanager
def browser(width: int, height: int) -> Iterator[Any]:
    """Start Chromium with a window of this size."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS.split(), f"window-size={width},{height}", f"user-data-dir={profile}"):
            options.add_argument(f"--{flag}")
        chrome = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            yield chrome
        finally:
            chrome.quit()


def until(chrome: Any, script: str) -> None:
    """Wait until a script returns a true value."""
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(chrome, WAIT_S).until(lambda each: each.execute_script(f"return {script}"))


def chat(file: Path) -> None:
    """Question and answer in the chat."""
    with served("smollm2") as url, browser(900, 560) as chrome:
        chrome.get(f"{url}/")
        until(chrome, "document.getElementById('model').options.length === 1")
        chrome.find_element("id", "settings").click()
        chrome.find_element("id", "temperature").send_keys("0")
        chrome.find_element("css selector", "#settings > summary").click()
        chrome.find_element("id", "input").send_keys(f"{QUESTION}\n")
        until(chrome, f"document.querySelector('.assistant')?.textContent.includes({ANSWER!r})")
        until(chrome, "document.getElementById('stop').hidden")
        chrome.save_screenshot(str(file))


def engine(file: Path) -> None:
    """Running batch, queue, plugins."""
    with served("demo", *ENGINE_FLAGS) as url, busy(url, "demo", 12), browser(900, 700) as chrome:
        chrome.get(f"{url}/")
        until(chrome, "document.getElementById('model').options.length === 1")
        chrome.find_element("id", "tab-engine").click()
        until(chrome, r"/second\s*[1-9]/.test(document.getElementById('figures').innerText)")
        until(chrome, r"/Queue\s*[1-9]/.test(document.getElementById('figures').innerText)")
        chrome.save_screenshot(str(file))


class QuietFiles(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, without a log."""

    def log_message(self, *_: Any) -> None:
        return


def site(file: Path) -> None:
    """A guide on the built site."""
    handler = functools.partial(QuietFiles, directory=str(ROOT / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with browser(1280, 820) as chrome:
            chrome.get(f"http://127.0.0.1:{server.server_port}/{SITE_PAGE}")
            until(chrome, "document.readyState === 'complete'")
            chrome.save_screenshot(str(file))
        server.shutdown()


PICTURES = {
    "chat": (chat, "page-chat.png"), "engine": (engine, "page-engine.png"), "site": (site, "site.png")
}  # fmt: skip

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        make, picture = PICTURES[name]
        make(HERE / picture)

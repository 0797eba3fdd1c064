"""Commands and servers run for real, with deadlines, and are killed with all that they started."""

from __future__ import annotations

import re
import signal
import sys

import psutil
import pytest

from tenonry_testkit.kernel.roles import is_gone
from tenonry_testkit.processes import URL, Running, descendants, run_cli, start_server

pytestmark = pytest.mark.integration

PYTHON = (sys.executable, "-c")
TREE = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=len(sys.argv) > 1)
print("started", child.pid, flush=True)
time.sleep(60)
"""
SERVER = """
import http.server, sys, threading, time

class Handler(http.server.BaseHTTPRequestHandler):
    ready = False
    def do_GET(self):
        self.send_response(200 if Handler.ready else 503)
        self.end_headers()
    def log_message(self, *args):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"listening on http://127.0.0.1:{server.server_port}/", file=sys.stderr, flush=True)
threading.Timer(0.2, setattr, (Handler, "ready", True)).start()
server.serve_forever()
"""


def test_output_input_and_exit_code_are_captured():
    code = "import sys; print(sys.stdin.read().upper()); print('oh', file=sys.stderr); sys.exit(3)"
    done = run_cli(code, command=PYTHON, stdin="text", timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (3, "TEXT\n", "oh\n")
    with pytest.raises(AssertionError, match=r"(?s)exit code 3.*TEXT.*oh"):
        done.check()


def test_environment_is_added_to_and_taken_from(monkeypatch):
    monkeypatch.setenv("UNWANTED", "1")
    code = "import os; print(os.environ.get('UNWANTED'), os.environ.get('WANTED'))"
    done = run_cli(code, command=PYTHON, env={"UNWANTED": None, "WANTED": "2"}, timeout=20)
    assert done.check().stdout == "None 2\n"


def test_deadline_is_an_error_with_the_output_so_far():
    with pytest.raises(AssertionError, match=r"(?s)still running after 0.5 s.*before"):
        run_cli("import time; print('before'); time.sleep(60)", command=PYTHON, timeout=0.5)


@pytest.mark.parametrize("arguments", [(), ("in a session of its own",)])
def test_whole_tree_is_killed(arguments):
    with Running(TREE, *arguments, command=PYTHON) as process:
        child = int(process.wait_for_output(r"started (\d+)").group(1))
        assert child in {found.pid for found in process.descendants()} & {
            found.pid for found in descendants()
        }
    assert is_gone(child)


def test_ending_while_waited_for_is_an_error_with_the_output():
    early = pytest.raises(AssertionError, match=r"(?s)ended with 0 while waiting for.*goodbye")
    with Running("print('goodbye')", command=PYTHON) as process, early:
        process.wait_for_output("hello", timeout=20)


def test_signal_and_exit_code():
    with Running("import time; print('up'); time.sleep(60)", command=PYTHON) as process:
        process.wait_for_output("up")
        assert process.stop(signal.SIGTERM) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("line", "url"),
    [
        ("listening on http://127.0.0.1:80; loading demo", "http://127.0.0.1:80"),
        ("ready at http://127.0.0.1:80 · demo", "http://127.0.0.1:80"),
        ("(http://localhost:80/)", "http://localhost:80"),
        ("see http://my-host.example.", "http://my-host.example"),
        ('{"url": "https://[::1]:80/base/path/", "model": "demo"}', "https://[::1]:80/base/path"),
        ("<http://a:80>, 'http://b:81'", "http://a:80"),
        ("\x1b[1mhttp://127.0.0.1:80\x1b[0m", "http://127.0.0.1:80"),
    ],
)
def test_address_ends_where_the_text_around_it_begins(line, url):
    found = re.search(URL, f"a line before\n{line}\n")
    assert found is not None
    assert found[1] == url


def test_address_is_read_from_whole_lines_only():
    assert re.search(URL, "listening on http://127.0.0.1:80") is None


def test_server_is_waited_for_until_it_is_ready():
    with start_server(SERVER, command=PYTHON) as server:
        assert server.status_of("/ready") == 200
        assert server.url.startswith("http://127.0.0.1:")
        pid = server.pid
    assert server.status_of("/ready") == 0
    assert not psutil.pid_exists(pid)


def test_fixtures_run_commands_and_servers(run_cli, start_server):
    assert run_cli("print(1)", command=PYTHON).stdout == "1\n"
    assert start_server(SERVER, command=PYTHON).status_of("/") == 200


def test_kernel_command_line_runs():
    done = run_cli("--version", timeout=20).check()
    assert done.stdout.split() == ["tenonry", "0.1.0"]

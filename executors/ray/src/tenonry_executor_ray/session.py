"""This process's connection to Ray, and the watch over the cluster's head. Front end and engine; imports Ray."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray._private import auto_init_hook, worker
from ray._private.utils import read_ray_address
from ray.exceptions import RayError, RayTaskError
from ray.util import get_node_ip_address

from tenonry.errors import LaunchError
from tenonry_executor_ray.cleanup import start_cleanup
from tenonry_executor_ray.options import RayOptions

logger = logging.getLogger("tenonry.ray")
DISCONNECTED = "this process was disconnected from Ray"
LOCAL = "local"  # Ray's name for a private cluster, which ends with the process
PROBE_EVERY_S = 0.5
PROBE_TIMEOUT_S = 1.0
PROBES_TO_LOSE = 4
CLOSE_TIMEOUT_S = 15.0


class RaySession:
    """Connects unless this process is connected already (RA-1); `close` undoes only what the session did (RA-7).

    `on_lost(reason)` is called once, from another thread, when the head does not answer any more. Ray kills a process
    whose connection outlives the head by a minute, so close the session then.
    """

    def __init__(
        self,
        options: RayOptions,
        on_lost: Callable[[str], None],
        *,
        default_address: str | None = None,
    ) -> None:
        self.owned = not ray.is_initialized()
        # A call to Ray after the connection has ended must fail instead of starting a private cluster.
        auto_init_hook.enable_auto_connect = False
        self._cleanup: subprocess.Popen[bytes] | None = None
        if self.owned:
            address = find_cluster(
                options.address or os.environ.get("RAY_ADDRESS") or default_address
            )
            _connect(address, options.namespace)
            if address == LOCAL:
                self._cleanup = start_cleanup(worker.global_worker.node.get_session_dir_path())
        self.lost: str | None = None
        self.head: str = ray.get_runtime_context().gcs_address
        self.host: str = get_node_ip_address()
        self._on_lost = on_lost
        self._closing = threading.Event()
        threading.Thread(target=self._watch, name="ray head", daemon=True).start()

    @property
    def alive(self) -> bool:
        """True if Ray can be called: it would start another cluster for a process that is not connected."""
        return self.lost is None and ray.is_initialized()

    def _watch(self) -> None:
        """Ray itself does not report a lost head for a minute, and then ends the process."""
        failures = 0
        while failures < PROBES_TO_LOSE:
            if self._closing.wait(PROBE_EVERY_S):
                return
            if not ray.is_initialized():
                self.lost = DISCONNECTED
                break
            failures = 0 if _answers(self.head) else failures + 1
        self.lost = self.lost or f"the head of the Ray cluster at {self.head} does not answer"
        self._on_lost(self.lost)

    def close(self) -> None:
        """Disconnect within a bounded time. Idempotent."""
        if not self._closing.is_set():
            self._closing.set()
            if self.owned:
                bounded(ray.shutdown, CLOSE_TIMEOUT_S)
            if self._cleanup is not None:
                self._cleanup.communicate(timeout=CLOSE_TIMEOUT_S)


class Disconnected(LaunchError):
    """This process has no connection to Ray any more."""


def ready(calls: Sequence[Any], timeout: float) -> list[Any]:
    """Those of `calls` that are done, one at least unless `timeout` seconds pass. Raises Disconnected: called without a
    connection, Ray would start another cluster; one that is cut while Ray waits would end our process.
    """
    try:
        if ray.is_initialized():
            done: list[Any] = ray.wait(list(calls), num_returns=1, timeout=max(0.0, timeout))[0]
            return done
    except (RayError, SystemExit) as error:
        raise Disconnected(f"{DISCONNECTED}: {words(error)}") from error
    raise Disconnected(DISCONNECTED)


def bounded(call: Callable[[], Any], timeout: float) -> bool:
    """Run a call to the head, which may be gone; False if it did not return within `timeout` seconds."""

    def run() -> None:
        try:
            call()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - Ray raises exceptions of many types; all are logged
            logger.warning("releasing something in Ray failed: %s", error)

    thread = threading.Thread(target=run, name="ray release", daemon=True)
    thread.start()
    thread.join(timeout)
    return not thread.is_alive()


def _connect(address: str, namespace: str | None) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {}
    if address == LOCAL:  # nothing else runs in it that its engines should give way to
        options = {"include_dashboard": False, "_system_config": {"worker_niceness": 0}}
    try:
        ray.init(address=address, namespace=namespace, logging_level=logging.WARNING, **options)
    except Exception as error:
        raise LaunchError(
            f"cannot connect to Ray at {address}: {words(error)}; start it with: ray start --head"
        ) from error
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(
            signal.SIGTERM, handler
        )  # Ray installs its own, which ends the process immediately


def find_cluster(address: str | None) -> str:
    """The given address, else that of the cluster which was started last on this node, else `LOCAL`: a new one.

    Raises LaunchError if no process listens there: Ray itself would wait for a minute.
    """
    if address is None or address == "auto":
        last: str | None = read_ray_address()
        if last is None or (address is None and not _answers(last)):
            return address or LOCAL
        address = last
    if ":" in address and "://" not in address and not _answers(address):
        raise LaunchError(
            f"no Ray cluster answers at {address}; start its head there with: ray start --head"
        )
    return address


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT_S):
            return True
    except ValueError:
        return False
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)  # that is unrelated to the other side


def words(error: BaseException) -> str:
    """Return an exception of Ray as one line, without its pages of advice; with a hint if our package is missing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
        type(error).__name__
    ]
    missing = next((line for line in lines if line.startswith("ModuleNotFoundError")), None)
    if missing is not None:
        return f"{missing}; pip install tenonry-executor-ray and all plugins in use there"
    return lines[-1] if isinstance(error, RayTaskError) else lines[0]

"""Addresses and sockets: private folders, explicit addresses, keys on every TCP socket (PM-12, HS-1, Q4)."""

from __future__ import annotations

import gc
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from tenonry.errors import ConfigError
from tenonry.transport.folder import RunDirectory
from tenonry.transport.keys import CurveKeys, read_keys
from tenonry.transport.sockets import (
    close_all,
    endpoint,
    engine_identity,
    engine_index_of,
    make_socket,
    port_identity,
    tcp_address,
)

Make = Callable[..., "zmq.Socket[bytes]"]


@pytest.fixture
def run() -> Iterator[RunDirectory]:
    made = RunDirectory()
    yield made
    made.close()


@pytest.fixture
def make() -> Iterator[Make]:
    """`make_socket` in a context of the test's own; everything is closed at the end."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets = []

    def made(kind: int, address: str, **options: Any) -> zmq.Socket[bytes]:
        sockets.append(make_socket(context, kind, address, **options))
        return sockets[-1]

    yield made
    close_all(*sockets)
    context.destroy(linger=0)


class TestIdentity:
    """HS-1: two bytes, little endian, decoded the same way."""

    @pytest.mark.parametrize(
        ("index", "identity"),
        [(0, b"\0\0"), (1, b"\x01\0"), (258, b"\x02\x01"), (65535, b"\xff\xff")],
    )
    def test_both_ways(self, index, identity):
        assert engine_identity(index) == identity
        assert engine_index_of(identity) == index

    def test_that_of_ports_is_another_one_in_the_next_epoch(self):
        """IO-3: it has four bytes; epochs are unbounded."""
        assert port_identity(258, 513) == b"\x02\x01\x01\x02"
        assert port_identity(1, 65536) == b"\x01\0\0\0"

    def test_there_are_two_bytes(self):
        with pytest.raises(OverflowError):
            engine_identity(65536)


class TestRunDirectory:
    def test_it_is_private(self, run):
        assert stat.S_IMODE(Path(run.path).stat().st_mode) == 0o700
        name = Path(run.path).name
        assert name.startswith(f"tenonry-{os.getpid()}-")
        assert len(name) <= 24, "one folder in another has to fit into the path of a socket"

    def test_it_goes_when_it_is_closed_and_closing_twice_is_fine(self, run):
        (Path(run.path) / "socket").touch()
        run.close()
        run.close()
        assert not Path(run.path).exists()

    def test_it_goes_when_it_is_collected(self):
        path = Path(RunDirectory().path)
        gc.collect()
        assert not path.exists()

    def test_it_goes_when_a_signal_interrupts_the_one_who_makes_it(self, monkeypatch, tmp_path):
        def make(*args: Any) -> None:
            mkdir(*args)
            raise KeyboardInterrupt

        mkdir = os.mkdir
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with monkeypatch.context() as patch:
            patch.setattr(os, "mkdir", make)
            with pytest.raises(KeyboardInterrupt):
                RunDirectory()
        gc.collect()
        assert list(tmp_path.iterdir()) == []

    def test_it_goes_in_the_end_when_a_signal_interrupts_the_one_who_closes_it(
        self, run, monkeypatch
    ):
        def remove(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", remove)
            with pytest.raises(KeyboardInterrupt):
                run.close()
        run._finalizer()  # as when it is collected, or Python ends
        assert not Path(run.path).exists()

    @pytest.mark.parametrize("end", ["pass", "run.close()", "del run"])
    @pytest.mark.integration
    def test_it_outlives_a_fork_of_the_process_that_made_it(self, end):
        """A user's program may fork, through `multiprocessing` for example, and its children end before it does."""
        program = textwrap.dedent(f"""
            import os, sys
            from tenonry.transport.folder import RunDirectory
            run = RunDirectory()
            path, child = run.path, os.fork()
            if child == 0:
                {end}
                sys.exit()
            os.waitpid(child, 0)
            print(path, os.path.isdir(path))
        """)
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
        )
        path, is_there = done.stdout.split()
        assert is_there == "True"
        assert not Path(path).exists(), "and it goes with its maker"

    def test_addresses_lie_inside(self, run):
        assert run.address("handshake") == f"ipc://{run.path}/handshake"

    def test_a_path_too_long_for_a_socket_is_refused_with_the_remedy(self, tmp_path, monkeypatch):
        deep = tmp_path / ("x" * 90)
        deep.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
        made = RunDirectory()
        with pytest.raises(
            ConfigError, match="too long for the system; set TMPDIR to a shorter folder"
        ):
            made.address("handshake")
        made.close()


class TestAddresses:
    """PM-12."""

    def test_local_ones_are_unique_files_in_the_run_directory(self, run):
        addresses = {run.address() for _ in range(50)}
        assert len(addresses) == 50
        assert all(address.startswith(f"ipc://{run.path}/") for address in addresses)

    def test_others_are_tcp_with_an_explicit_host(self):
        assert tcp_address("10.0.0.5", 5) == "tcp://10.0.0.5:5"
        assert tcp_address("127.0.0.1", 0) == "tcp://127.0.0.1:0"
        assert tcp_address("::1", 5) == "tcp://[::1]:5"
        assert tcp_address("[::1]", 5) == "tcp://[::1]:5"

    @pytest.mark.parametrize(
        "host", ["", "*", "0.0.0.0", "::", "[::]", "0", "0.0", "::0", "0:0:0:0:0:0:0:0", " "]
    )
    def test_every_interface_at_once_is_refused(self, host):
        with pytest.raises(ConfigError, match="explicit address of this one"):
            tcp_address(host, 5)


class TestSockets:
    def test_messages_pass_over_ipc(self, run, make):
        address = run.address("x")
        router = make(zmq.ROUTER, address, bind=True)
        dealer = make(zmq.DEALER, address, bind=False, identity=engine_identity(3))
        dealer.send_multipart([b"a", b"b"])
        assert router.recv_multipart() == [engine_identity(3), b"a", b"b"]

    def test_port_zero_is_any_free_one_and_is_read_back(self, make):
        """Q4: bound and read back, never probed."""
        keys = CurveKeys.generate()
        first, second = (
            make(zmq.PULL, "tcp://127.0.0.1:0", bind=True, curve=keys) for _ in range(2)
        )
        ports = [int(endpoint(socket).rpartition(":")[2]) for socket in (first, second)]
        assert ports[0] != ports[1]
        assert min(ports) > 0

    def test_a_port_in_use_is_named(self, make):
        keys = CurveKeys.generate()
        taken = endpoint(make(zmq.PULL, "tcp://127.0.0.1:0", bind=True, curve=keys))
        with pytest.raises(ConfigError, match=f"{taken}: Address already in use"):
            make(zmq.PULL, taken, bind=True, curve=keys)

    def test_an_address_that_is_none_is_named(self, make, run):
        with pytest.raises(ConfigError, match="nonsense"):
            make(zmq.PULL, "nonsense://x", bind=True)
        with pytest.raises(ConfigError, match="no/such/folder"):
            make(zmq.PULL, f"ipc://{run.path}/no/such/folder/x", bind=True)

    def test_a_router_says_when_nobody_is_there(self, make, run):
        router = make(zmq.ROUTER, run.address("x"), bind=True)
        with pytest.raises(zmq.ZMQError, match="Host unreachable"):
            router.send_multipart([engine_identity(9), b"x"])

    def test_who_comes_back_is_heard_though_nobody_has_noticed_that_it_was_gone(self, make, run):
        address = run.address("x")
        router = make(zmq.ROUTER, address, bind=True)
        for word in (
            b"first",
            b"second",
        ):  # the other end of a broken connection may look alive for minutes
            dealer = make(zmq.DEALER, address, bind=False, identity=engine_identity(3))
            dealer.send(word)
            assert router.poll(20_000)
            assert router.recv_multipart() == [engine_identity(3), word]
        router.send_multipart([engine_identity(3), b"answer"])
        assert dealer.poll(20_000)
        assert dealer.recv() == b"answer"

    def test_there_are_no_high_water_marks(self, make, run):
        """A busy front end must not block a step."""
        address = run.address("x")
        make(zmq.PULL, address, bind=True)
        push = make(zmq.PUSH, address, bind=False)
        for _ in range(5000):
            push.send(b"x", zmq.NOBLOCK)

    def test_closing_takes_what_is_there(self, make, run):
        socket = make(zmq.PULL, run.address("x"), bind=True)
        close_all(socket, None, socket)
        assert socket.closed


class TestCurve:
    """Every TCP socket is encrypted with keys of the run."""

    @pytest.mark.parametrize("bind", [True, False])
    def test_tcp_without_keys_is_refused(self, make, bind):
        with pytest.raises(
            ConfigError, match=r"tcp://127\.0\.0\.1:5: a TCP socket needs CURVE keys"
        ):
            make(zmq.PULL, "tcp://127.0.0.1:5", bind=bind)

    @pytest.mark.parametrize(
        "address", ["tcp://*:0", "tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://0:0"]
    )
    def test_every_interface_at_once_is_refused_with_keys_too(self, make, address):
        with pytest.raises(ConfigError, match="explicit address"):
            make(zmq.PULL, address, bind=True, curve=CurveKeys.generate())

    def test_a_round_trip_over_tcp(self, make):
        keys = CurveKeys.generate()
        router = make(zmq.ROUTER, "tcp://127.0.0.1:0", bind=True, curve=keys)
        dealer = make(zmq.DEALER, endpoint(router), bind=False, identity=b"\0\0", curve=keys)
        dealer.send(b"question")
        assert router.poll(20_000)
        assert router.recv_multipart() == [b"\0\0", b"question"]
        router.send_multipart([b"\0\0", b"answer"])
        assert dealer.poll(20_000)
        assert dealer.recv() == b"answer"

    def test_keys_of_another_run_do_not_open_a_socket(self, make):
        router = make(zmq.ROUTER, "tcp://127.0.0.1:0", bind=True, curve=CurveKeys.generate())
        dealer = make(zmq.DEALER, endpoint(router), bind=False, curve=CurveKeys.generate())
        dealer.send(b"question")
        assert not router.poll(300)

    def test_a_socket_without_keys_is_not_heard(self, make):
        router = make(zmq.ROUTER, "tcp://127.0.0.1:0", bind=True, curve=CurveKeys.generate())
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            stranger.connect(endpoint(router))
            stranger.send(b"question")
            assert not router.poll(300)
            stranger.close()

    def test_every_run_has_keys_of_its_own(self):
        first, second = CurveKeys.generate(), CurveKeys.generate()
        assert len({*first, *second}) == 8


class TestKeyFiles:
    def test_keys_are_read_back(self, tmp_path):
        keys = CurveKeys.generate()
        assert read_keys(self.write(tmp_path, keys.encode() + "\n")) == keys

    def test_a_file_that_others_can_read_is_refused(self, tmp_path):
        file = self.write(tmp_path, CurveKeys.generate().encode())
        Path(file).chmod(0o644)
        with pytest.raises(ConfigError, match="chmod 600"):
            read_keys(file)

    def test_a_file_of_something_else_is_refused(self, tmp_path):
        with pytest.raises(ConfigError, match="invalid key file"):
            read_keys(self.write(tmp_path, "hello"))

    @staticmethod
    def write(folder: Path, text: str) -> str:
        file = folder / "keys"
        file.touch(0o600)
        file.write_text(text, "ascii")
        return str(file)

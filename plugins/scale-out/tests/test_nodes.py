"""A front end's view of nodes that have engines and no front end."""

from __future__ import annotations

import msgspec
import pytest
import zmq

from tenonry.errors import LaunchError
from tenonry.interfaces.launcher import Death
from tenonry_scale_out import nodes
from tenonry_scale_out.nodes import NODE_IDENTITY, HeadlessNodes, NodeOrder, NodeReport, plugins_of
from tenonry_testkit.kernel.engine import fake_config
from tenonry_testkit.roles import eventually

ADDRESS = "inproc://nodes"


def deaf(index: int, death: Death) -> None:
    pass


@pytest.fixture
def context():
    found = zmq.Context()
    yield found
    found.destroy(linger=0)


def test_nodes_that_share_a_host_name_are_lost_one_by_one(context, monkeypatch):
    monkeypatch.setattr(nodes, "SILENCE_S", 1.0)
    deaths: dict[int, Death] = {}
    watch = HeadlessNodes(deaths.__setitem__, deaths.__setitem__)
    door = context.socket(zmq.ROUTER)
    door.bind(ADDRESS)
    watch.start(door)
    sockets = []
    for index in range(2):
        socket = context.socket(zmq.DEALER)
        socket.identity = NODE_IDENTITY + b"same" + str(index).encode()
        socket.connect(ADDRESS)
        socket.send(msgspec.msgpack.encode(NodeReport("same", [index])))
        sockets.append(socket)

    def only_the_first_one_reports() -> bool:
        sockets[0].send(msgspec.msgpack.encode(NodeReport("same", [0])))
        return bool(deaths)

    eventually(only_the_first_one_reports)
    watch.close()
    for socket in sockets:
        socket.close()
    reason = "engine 1: its node same has said nothing for 1 s"
    assert deaths == {1: Death(reason, lost_node="same")}


def test_the_last_words_of_a_node_that_is_gone_count(context):
    deaths: dict[int, Death] = {}
    watch = HeadlessNodes(deaths.__setitem__, deaths.__setitem__)
    door = context.socket(zmq.ROUTER)
    door.router_mandatory = True
    report = NodeReport(
        "away", [4], {4: Death("engine 4 ended with signal SIGKILL", began_step=False)}
    )
    assert watch.receive(door, [NODE_IDENTITY + b"away", msgspec.msgpack.encode(report)]) == (
        "engine 4 ended with signal SIGKILL on node away"
    )
    assert deaths == {4: Death("engine 4 ended with signal SIGKILL on node away", began_step=False)}
    door.close()


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x93\xa2\xdbx\x90\x80", b"\x91" * 100_000])
def test_garbage_is_dropped(body, context, caplog):
    """Fault 21: the thread that watches the nodes goes on."""
    door = context.socket(zmq.ROUTER)
    assert HeadlessNodes(deaf, deaf).receive(door, [NODE_IDENTITY + b"x", body]) == ""
    assert "ignored an invalid report from a node" in caplog.text
    door.close()


def test_an_order_reaches_the_node_of_its_engine(context):
    """Reports that the node sent before it followed the order are ignored."""
    deaths: list[Death] = []
    watch = HeadlessNodes(lambda _, death: deaths.append(death), deaf)
    door = context.socket(zmq.ROUTER)
    door.bind(ADDRESS)
    node = context.socket(zmq.DEALER)
    node.identity = NODE_IDENTITY + b"n"
    node.connect(ADDRESS)

    node.send(msgspec.msgpack.encode(NodeReport("n", [3, 4], {4: Death("once")})))
    watch.receive(door, door.recv_multipart())
    assert watch.ended == {4: Death("once on node n")}
    watch.order([4, 5])  # there is none to be stopped
    config = fake_config()
    watch.order([4], "tcp://here:1", config)
    assert watch.ended == {}
    with pytest.raises(LaunchError, match=r"the node of engines \[5\] is gone"):
        watch.order([4, 5], "tcp://here:1")
    for number, text in [(1, "late"), (3, "twice")]:
        node.send(msgspec.msgpack.encode(NodeReport("n", [3, 4], {4: Death(text)}, number)))
        watch.receive(door, door.recv_multipart())
    assert list(map(str, deaths)) == ["once on node n", "twice on node n"]
    watch.start(door)
    heard = [node.recv() for _ in range(6)]
    assert heard[:3] == [b"ok"] * 3
    orders = [msgspec.msgpack.decode(frame, type=NodeOrder) for frame in heard[3:]]
    assert orders[1] == NodeOrder(2, [4], "tcp://here:1", plugins_of(config))
    assert [order.address for order in orders] == ["", "tcp://here:1", "tcp://here:1"]
    watch.close()
    node.close()


def test_a_node_that_was_started_again_returns_once(context):
    """No order that the process before it followed counts for it."""
    calls: list[tuple[str, str]] = []
    watch = HeadlessNodes(
        lambda _, death: calls.append(("died", str(death))),
        lambda _, death: calls.append(("returned", str(death))),
    )
    door = context.socket(zmq.ROUTER)

    def receive(report: NodeReport) -> None:
        watch.receive(door, [NODE_IDENTITY + b"n", msgspec.msgpack.encode(report)])

    receive(NodeReport("n", [4], process=1))
    watch.order([4], "tcp://here:1")
    for _ in range(2):
        receive(NodeReport("n", [4], process=2))
    assert calls == [("returned", "engine 4: its node n restarted")]
    assert watch.ended[4].lost_node == "n"
    watch.order([4], "tcp://here:1")
    assert watch.ended == {}
    receive(NodeReport("n", [4], {4: Death("early")}, process=2))
    receive(NodeReport("n", [4], {4: Death("once more")}, number=2, process=2))
    assert calls[1:] == [("died", "once more on node n")]
    door.close()


def test_a_node_hears_when_all_engines_are_ready(context):
    """Until then, that the front end lives."""
    watch = HeadlessNodes(deaf, deaf)
    door = context.socket(zmq.ROUTER)
    door.bind(ADDRESS)
    node = context.socket(zmq.DEALER)
    node.connect(ADDRESS)
    report = msgspec.msgpack.encode(NodeReport("n", []))
    node.send(report)
    watch.receive(door, door.recv_multipart())
    assert node.recv() == b"ok"
    watch.start(door)
    node.send(report)
    assert node.recv() == nodes.READY
    watch.close()
    node.close()

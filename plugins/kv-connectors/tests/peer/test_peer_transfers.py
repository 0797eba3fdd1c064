"""Two engines with a connector each, or one and a peer that does not behave: real sockets, real keys."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import zmq

from tenonry.interfaces.kv_connector import KVConnectorContext, KVConnectorRole
from tenonry.outputs import FinishReason
from tenonry.step import Adapter
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import endpoint, make_socket
from tenonry_kv_connectors.peer.connector import PeerConnector, PeerOptions
from tenonry_kv_connectors.peer.offer import Offer, Sealer
from tenonry_kv_connectors.peer.protocol import Part, Refused, checksum, read_ask, to_text
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.kv_connector import BlockNames
from tenonry_testkit.scenarios_workers import CachingScheduler
from tenonry_testkit.spec import HarnessSpec

WANTS = {"do_remote_decode": True}
PROMPT = list(range(3, 21))  # 18 tokens: four blocks of four, and two more
OPTIONS = PeerOptions(timeout=3.0, hold=5.0, size="1MiB")


class Engine(SchedulerHarness):
    """An engine with both halves of the connector, which counts what it was told."""

    def __init__(self, key_file, options=OPTIONS, **config):
        spec = HarnessSpec(
            num_blocks=24, max_num_batched_tokens=12, config=(("auth_key_file", key_file), *config.items())
        )  # fmt: skip
        self.halves = []
        for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
            context = KVConnectorContext(
                spec.engine_config(), fake_model(vocab_size=spec.vocab_size), role,
                engine_id="e_dp0", kv_cache=spec.kv_cache(), options=options,
            )  # fmt: skip
            self.halves.append(PeerConnector(context))
        self.halves[0].name_blocks(BlockNames(spec.block_size))
        super().__init__(CachingScheduler, spec, connectors=tuple(self.halves))

    def run(self, prompt=PROMPT, max_tokens=3, parameters=None, **fields):
        """One request to its end; the harness checks every token. Returns the entry."""
        entry = self.add(prompt, max_tokens, kv_transfer_params=parameters, **fields)
        self.drain()
        return entry

    def offer(self, prompt=PROMPT, **fields):
        """The parameters that a client gets."""
        return self.run(prompt, 1, fields.pop("wants", WANTS), **fields).finished.kv_transfer_params

    @property
    def exported(self):
        return self.halves[1].exchange._exported

    def close(self):
        for half in self.halves:
            half.shutdown()


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys"
    path.write_text(CurveKeys.generate().encode())
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def engines(keys):
    made = []

    def make(options=OPTIONS, **config):
        made.append(Engine(keys, options, **config))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def until(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_a_prompt_is_computed_by_one_engine_and_decoded_by_another(engines):
    first, second = engines(), engines()
    for number in range(3):
        prompt = [number, *PROMPT]
        offer = first.offer(prompt)
        assert offer["blocks"] == 4
        assert second.run(prompt, parameters=offer).num_cached == 16
    until(lambda: not len(first.exported))  # a prompt that was fetched is not kept
    assert second.halves[0].numbers()["kv_connector_load_bytes"] == 3 * 4 * 32
    assert first.halves[0].numbers()["kv_connector_save_bytes"] == 3 * 4 * 32


def test_what_the_decoding_engine_has_is_not_fetched(engines):
    first, second = engines(), engines()
    second.run(PROMPT[:9])
    assert second.run(parameters=first.offer()).num_cached == 16
    assert second.halves[0].numbers()["kv_connector_load_bytes"] == 2 * 32


def test_a_prompt_of_whole_blocks_leaves_its_last_token(engines):
    first, second = engines(), engines()
    assert second.run(PROMPT[:16], parameters=first.offer(PROMPT[:16])).num_cached == 12


def test_several_readers_and_no_more(engines):
    first, second, third = engines(), engines(), engines()
    offer = first.offer(wants={**WANTS, "num_readers": 2})
    assert second.run(parameters=offer).num_cached == 16
    assert third.run(parameters=offer).num_cached == 16
    until(lambda: not len(first.exported))
    assert engines().run(parameters=offer).num_cached == 0


def test_what_no_engine_comes_for_is_given_back(engines):
    first = engines(OPTIONS.model_copy(update={"hold": 1.0}))
    offer = first.offer()
    assert first.exported.used == 4 * 32
    assert first.scheduler.blocks.num_free == first.scheduler.blocks.num_total
    until(lambda: not first.exported.used)
    assert engines().run(parameters=offer).num_cached == 0


def test_what_finds_no_room_is_computed(engines):
    first = engines(PeerOptions(size=3 * 32, timeout=3.0))
    assert engines().run(parameters=first.offer()).num_cached == 0
    assert not first.exported.used


def test_a_request_that_was_aborted_or_wants_no_offer_leaves_nothing(engines):
    first = engines()
    entry = first.add(PROMPT, 9, kv_transfer_params=WANTS)
    first.launch()
    first.abort([entry.handle], FinishReason.ABORT)
    first.drain()
    assert first.run().finished.kv_transfer_params is None
    assert first.offer(PROMPT[:3]) is None  # no whole block
    assert not len(first.exported)


def test_a_reset_of_either_side_makes_offers_worthless(engines):
    first, second, third = engines(), engines(), engines()
    offer = first.offer()
    assert second.halves[0].reset()
    assert second.run(parameters=offer).num_cached == 0
    assert first.halves[0].reset()
    first.run([60])  # a step carries it to the ranks
    assert third.run(parameters=offer).num_cached == 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cache_salt": "tenant"}, "another prompt"),
        ({"adapter": Adapter("a", "1")}, "another prompt"),
        ({"prompt": [5, *PROMPT]}, "another prompt"),
    ],
)
def test_requests_that_may_not_share_do_not(engines, caplog, fields, reason):
    offer = engines().offer()
    assert engines().run(parameters=offer, **fields).num_cached == 0
    assert reason in caplog.text


def test_a_longer_prompt_takes_what_it_shares(engines):
    assert engines().run([*PROMPT, 9, 9, 9], parameters=engines().offer()).num_cached == 16


def test_ranks_that_differ_are_refused_by_name(engines, keys, caplog):
    offer = engines().offer()
    sealer = Sealer(CurveKeys.decode(Path(keys).read_text()))
    two = unsealed(offer, peer=offer["peer"] * 2)
    assert engines().run(parameters=sealer.sealed(two)).num_cached == 0
    assert "they name 2 ranks, and this engine has 1: sizes must be equal" in caplog.text


def test_another_configuration_is_refused(engines, caplog):
    offer = engines().offer()
    assert engines(dtype="bfloat16", max_model_len=28).run(parameters=offer).num_cached == 0
    assert "another model or configuration" in caplog.text


def unsealed(parameters, **changes):
    return Offer(**{**parameters, "peer": tuple(parameters["peer"]), **changes, "seal": ""})


@pytest.mark.parametrize(
    "change",
    [
        {"peer": ["tcp://127.0.0.1:9"]}, {"token": "0" * 32}, {"seal": "0" * 32}, {"seal": "é"}, {"blocks": 3},
        {"more": 1}, {"number": "1"}, {"identity": None},
    ],
)  # fmt: skip
def test_an_offer_that_was_changed_is_not_followed(engines, caplog, change):
    offer = engines().offer()
    assert engines().run(parameters={**offer, **change}).num_cached == 0
    assert "no engine of this deployment made them" in caplog.text


def fetched(engine, good, prompt):
    """Return True if a fetch finishes in time; on a busy machine it may not."""
    return engine.run(prompt, parameters=good.offer(prompt)).num_cached == 16


# ------------------------------------------------------------------------------------- peers that do not behave
class BadPeer:
    """A rank that answers each ask with what `answer(ask, blocks)` returns: frames of messages, or nothing."""

    def __init__(self, keys, good, answer):
        self._answer = answer
        self._blocks = {}
        for token in good.exported._prompts.values():
            self._blocks |= token.blocks
        context = zmq.Context.instance()
        self._socket = make_socket(context, zmq.ROUTER, "tcp://127.0.0.1:0", bind=True, curve=keys)
        self.address = endpoint(self._socket)
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._closing:
            if self._socket.poll(20):
                who, text = self._socket.recv_multipart()
                ask = read_ask(text)
                for frames in self._answer(ask, self._blocks) if hasattr(ask, "digests") else []:
                    self._socket.send_multipart([who, *frames])
        self._socket.close(0)

    def close(self):
        self._closing = True
        self._thread.join()


def part(ask, blocks, first, last, *, position=None, change=lambda contents: contents):
    digests = ask.digests[first:last]
    contents = [blocks[digest] for digest in digests]
    head = Part(ask.id, first if position is None else position, checksum(digests, contents))
    return [to_text(head), *change(contents)]


def flipped(contents):
    return [contents[0][:-1] + bytes([contents[0][-1] ^ 1]), *contents[1:]]


def well_summed(ask, blocks, change):
    """A checksum that fits contents that do not."""
    contents = change([blocks[digest] for digest in ask.digests])
    return [to_text(Part(ask.id, 0, checksum(ask.digests, contents))), *contents]


BAD = {
    "silent": lambda ask, blocks: [],
    "half of it": lambda ask, blocks: [part(ask, blocks, 0, 2)],
    "refused": lambda ask, blocks: [[to_text(Refused(ask.id, "no"))]],
    "no message": lambda ask, blocks: [[b"\xc1"], [b""], [to_text((1, 2))]],
    "another's answer": lambda ask, blocks: [[to_text(Refused(ask.id + 1, "no"))]],
    "one bit": lambda ask, blocks: [part(ask, blocks, 0, 4, change=flipped)],
    "swapped": lambda ask, blocks: [part(ask, blocks, 0, 4, change=lambda c: c[::-1])],
    "wrong place": lambda ask, blocks: [part(ask, blocks, 0, 2, position=2)],
    "twice": lambda ask, blocks: [part(ask, blocks, 0, 2), part(ask, blocks, 0, 2)],
    "nothing in it": lambda ask, blocks: [part(ask, blocks, 0, 0)],
    "too many": lambda ask, blocks: [part(ask, blocks, 0, 4, change=lambda c: [*c, c[0]])],
    "short blocks": lambda ask, blocks: [well_summed(ask, blocks, lambda c: [b[:-8] for b in c])],
    "long blocks": lambda ask, blocks: [well_summed(ask, blocks, lambda c: [b + b for b in c])],
}


@pytest.mark.parametrize("name", BAD)
def test_a_peer_that_does_not_behave_costs_a_bounded_time_and_no_token(engines, keys, name):
    good = engines()
    offer = good.offer()
    options = OPTIONS.model_copy(update={"timeout": 0.3})
    text = CurveKeys.decode(Path(keys).read_text())
    peer = BadPeer(text, good, BAD[name])
    try:
        bad = Sealer(text).sealed(unsealed(offer, peer=(peer.address,)))
        engine = engines(options)
        start = time.monotonic()
        assert (
            engine.run(parameters=bad).num_cached == 0
        )  # and its tokens are right: the harness looks
        assert time.monotonic() - start < 3
        assert engine.scheduler.blocks.num_free == engine.scheduler.blocks.num_total
        prompts = ([number, *PROMPT] for number in range(21, 61))
        until(lambda: fetched(engine, good, next(prompts)))
    finally:
        peer.close()


def test_an_answer_that_comes_late_is_not_written(engines, keys):
    """Its blocks have other owners by then."""
    good = engines()
    offer = good.offer()
    text = CurveKeys.decode(Path(keys).read_text())
    late = threading.Event()

    def answer(ask, blocks):
        late.wait(3)
        return [part(ask, blocks, 0, 4)]

    peer = BadPeer(text, good, answer)
    try:
        engine = engines(OPTIONS.model_copy(update={"timeout": 0.2}))
        bad = Sealer(text).sealed(unsealed(offer, peer=(peer.address,)))
        assert engine.run(parameters=bad).num_cached == 0
        late.set()
        for number in range(30):
            engine.run([number + 20, *PROMPT])
            time.sleep(0.005)
    finally:
        peer.close()


def test_a_peer_that_is_gone_or_has_other_keys_is_a_miss(engines, tmp_path):
    first = engines()
    offer = first.offer()
    first.close()
    quick = OPTIONS.model_copy(update={"timeout": 0.3})
    assert engines(quick).run(parameters=offer).num_cached == 0
    other = tmp_path / "others"
    other.write_text(CurveKeys.generate().encode())
    other.chmod(0o600)
    stranger = Engine(str(other), quick)
    try:
        assert stranger.run(parameters=engines().offer()).num_cached == 0
    finally:
        stranger.close()


def test_an_aborted_request_gives_its_blocks_back_when_the_fetch_ends(engines, keys):
    good = engines()
    offer = good.offer()
    text = CurveKeys.decode(Path(keys).read_text())
    peer = BadPeer(text, good, BAD["silent"])
    try:
        engine = engines(OPTIONS.model_copy(update={"timeout": 0.3}))
        bad = Sealer(text).sealed(unsealed(offer, peer=(peer.address,)))
        entry = engine.add(PROMPT, 3, kv_transfer_params=bad)
        engine.launch()
        engine.abort([entry.handle])
        engine.drain()
        assert engine.scheduler.blocks.num_free == engine.scheduler.blocks.num_total
    finally:
        peer.close()


def test_it_closes_while_its_thread_looks_at_a_job(keys):
    """The thread may see the end before it is woken for it, and then nothing takes the wake-up."""
    engine = Engine(keys)
    exchange = engine.halves[1].exchange
    exchange._do(lambda: setattr(exchange, "_closing", True))
    exchange._thread.join(5)
    closes = threading.Thread(target=engine.close, daemon=True)
    closes.start()
    closes.join(5)
    assert not closes.is_alive()

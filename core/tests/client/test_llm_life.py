"""Start and end of an LLM, in this process, without children or signal handlers; and its calls (AF-3)."""

from __future__ import annotations

import gc
import signal
import weakref

import psutil
import pytest

from tenonry import LLM, SamplingParams
from tenonry.errors import ConfigError, EngineDeadError, ModelError, PluginFault
from tenonry.outputs import RequestOutput
from tenonry_testkit.fakes import ByteIOProcessor, RecordingStatLogger
from tenonry_testkit.kernel.engine import fake_config
from tenonry_testkit.kernel.faulty import CALLS
from tenonry_testkit.kernel.plugins import raising_hooks
from tenonry_testkit.kernel.served import served_config
from tenonry_testkit.plugins import fake_model_installed
from tenonry_testkit.served import tokens

GREEDY = SamplingParams(temperature=0, max_tokens=8, detokenize=False)


def ids(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


class TestLife:
    def test_no_children_and_no_signal_handlers(self, make_llm):
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        llm = make_llm()
        llm.generate([[1]], GREEDY)
        assert psutil.Process().children() == []
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers

    def test_it_is_a_context_manager_and_shuts_down_once(self, make_llm):
        CALLS.clear()
        with make_llm(executor="tenonry_testkit.kernel.faulty:FaultyExecutor") as llm:
            llm.generate([[1]], GREEDY)
        llm.shutdown()
        assert CALLS.count("FaultyExecutor.shutdown") == 1
        with pytest.raises(EngineDeadError, match="it was shut down"):
            llm.generate([[1]], GREEDY)

    def test_it_can_be_collected(self, make_llm):
        llm = LLM(config=served_config(worker="tenonry_testkit.fakes:FakeWorker"))
        reference = weakref.ref(llm)
        del llm
        gc.collect()
        assert reference() is None

    def test_settings_may_be_keyword_arguments(self, make_llm):
        config = fake_config().model_dump(exclude_defaults=True, exclude={"model"})
        with LLM(
            "fake", **{**config, "plugins": {"allow": ["fake-model"]}, "max_num_seqs": 2}
        ) as llm:
            assert llm.config.max_num_seqs == 2
            assert ids(llm.generate([[1]], GREEDY)) == [tokens([1], GREEDY)]
            assert llm.info.max_model_len == 64

    def test_a_context_that_the_model_was_not_made_for_is_refused(self, make_llm):
        with pytest.raises(
            ConfigError, match=r"max_model_len=1000000 is above the \d+ tokens that the model fake "
        ):
            make_llm(max_model_len=1_000_000)

    def test_settings_and_a_configuration_exclude_each_other(self):
        for arguments in ({"model": "x"}, {"seed": 1}):
            with pytest.raises(ConfigError, match="either config= or single settings"):
                LLM(config=fake_config(), **arguments)
        parts = fake_config().model_dump(exclude_defaults=True, exclude={"model"})
        with pytest.raises(
            ConfigError, match="unknown setting 'max_num_seq'; did you mean 'max_num_seqs'"
        ):
            LLM("fake", **parts, max_num_seq=1)
        with pytest.raises(ConfigError, match="LLM runs one engine"):
            LLM("fake", **parts, data_parallel_size=2)

    def test_a_start_that_fails_ends_the_parts_that_were_there(self, make_llm, monkeypatch):
        ended: list[object] = []
        for cls in (ByteIOProcessor, RecordingStatLogger):
            monkeypatch.setattr(cls, "shutdown", lambda self: ended.append(type(self)))
        with pytest.raises(ModelError, match="no weights"):
            make_llm(
                worker={
                    "name": "tenonry_testkit.fakes:FakeWorker",
                    "options": {"fail_load": "no weights"},
                },
                stat_loggers=["tenonry_testkit.fakes:RecordingStatLogger"],
            )
        assert ended == [ByteIOProcessor, RecordingStatLogger]

    def test_a_hook_that_refuses_the_engine_stops_it(self, tmp_path):
        with fake_model_installed(tmp_path / "model") as site:
            site.distribution(
                "late", entry_points={"tenonry.plugins": {"late": "late_llm_hooks"}},
                modules={"late_llm_hooks": raising_hooks("tenonry_engine_ready", "info")},
            )  # fmt: skip
            CALLS.clear()
            with pytest.raises(PluginFault, match="plugin late"):
                LLM(
                    config=served_config(
                        plugins={"allow": ["fake-model", "late"]},
                        executor="tenonry_testkit.kernel.faulty:FaultyExecutor",
                    )
                )
        assert "FaultyExecutor.shutdown" in CALLS


class TestTheRest:
    def test_calls_to_workers_and_caches(self, make_llm):
        llm = make_llm()
        assert llm.collective_rpc("echo", ["x"]) == [[0, "x"]]
        assert llm.collective_rpc("echo", kwargs={"tag": 1}) == [[0, {"tag": 1}]]
        assert llm.reset_prefix_cache() is True

    def test_the_tokenizer(self, make_llm):
        """AF-3."""
        with pytest.raises(ValueError, match="ByteIOProcessor has no tokenizer"):
            make_llm().get_tokenizer()
        for values in ({"io_processor": None}, {"skip_tokenizer_init": True}):
            llm = make_llm(**values)
            with pytest.raises(ValueError, match="no tokenizer is loaded"):
                llm.get_tokenizer()
            with pytest.raises(ConfigError, match="chat needs an IO processor"):
                llm.chat([{"role": "user", "content": "hi"}])
            assert ids(llm.generate([[1]], GREEDY)) == [tokens([1], GREEDY)]

    def test_stat_loggers_get_everything(self, make_llm):
        llm = make_llm(stat_loggers=["tenonry_testkit.fakes:RecordingStatLogger"], log_stats=False)
        llm.generate([[1], [2, 3]], GREEDY, tags={"a": 1.0})
        llm.shutdown()
        (observer,) = llm._stats.loggers.values()
        assert isinstance(observer, RecordingStatLogger)
        assert observer.infos == [llm.info]
        finished = [each for record in observer.records for each in record.iteration.finished]
        assert sorted(each.num_prompt_tokens for each in finished) == [1, 2]
        assert sum(record.iteration.num_generation_tokens for record in observer.records) == 16
        assert any(record.scheduler for record in observer.records)

    def test_a_blocking_engine_has_no_standbys(self, make_llm):
        with pytest.raises(ConfigError, match="setting 'standby_engines'"):
            make_llm(standby_engines=1)

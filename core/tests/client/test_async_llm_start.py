"""Starts of an AsyncLLM, and the errors and leftovers of a failed one (AF-4, PM-7)."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import psutil
import pytest

from tenonry.client import engines
from tenonry.client.async_llm import AsyncLLM
from tenonry.client.core_client import CoreClient
from tenonry.errors import (
    ConfigError,
    LaunchError,
    ModelError,
    PluginFault,
    PluginNotFound,
    TenonryError,
)
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry_testkit.fakes import RecordingStatLogger
from tenonry_testkit.kernel.plugins import raising_hooks
from tenonry_testkit.kernel.served import served_config
from tenonry_testkit.served import collect, params, tokens

forked = pytest.mark.usefixtures("forked_children")


class TestStart:
    def start(self, **values: Any) -> AsyncLLM:
        return AsyncLLM(served_config(**values))

    @forked
    def test_it_may_be_built_in_a_thread_while_a_loop_runs(self, fake_model_site):
        async def main() -> None:
            engine = await asyncio.to_thread(self.start)
            assert await collect(engine, [1], params(), "r") == tokens([1], params())
            engine.shutdown()
            await asyncio.get_running_loop().shutdown_default_executor()

        asyncio.run(main())

    @forked
    def test_from_config_is_the_constructor(self, fake_model_site):
        engine = AsyncLLM.from_config(served_config(), context="test")
        assert engine.info.usage["context"] == "test"
        engine.shutdown()

    @pytest.mark.parametrize(
        ("values", "error", "text"),
        [
            ({"worker": {"name": "tenonry_testkit.kernel.faulty:FaultyWorker", "options": {"fail_load": "no weights"}}}, LaunchError,  # noqa: E501
             "engine 0 could not start: no weights"),
            ({"scheduler": {"name": "tenonry_testkit.kernel.faulty:FaultyScheduler", "options": {"fail": "constructor"}}}, LaunchError,  # noqa: E501
             "plugin tenonry_testkit.kernel.faulty:FaultyScheduler .* constructor failed on purpose"),
            ({"scheduler": "nobody"}, PluginNotFound, "no scheduler is called 'nobody'"),
            ({"launcher": "rays"}, PluginNotFound, "no launcher is called 'rays'"),
            ({"model": "unknown"}, ModelError, "model 'unknown' was found by no plugin"),
            ({"max_model_len": 5000}, ConfigError, "max_model_len=5000 is above the 2048 tokens"),
            ({"data_parallel_size": 2, "data_parallel_size_local": 1}, ConfigError, "tenonry keys FILE"),
            ({"num_gpu_blocks_override": 1, "block_size": 4}, LaunchError, "max_model_len=512 does not fit"),
            ({"stat_loggers": ["tenonry_testkit.kernel.faulty:Nothing"]}, TenonryError, "has no 'Nothing'"),
        ],
    )  # fmt: skip
    def test_a_start_that_fails_says_why_and_leaves_nothing(
        self, forked_children, fake_model_site, values, error, text
    ):
        with pytest.raises(error, match=text):
            self.start(**values)
        gc.collect()
        assert psutil.Process().children() == []

    @pytest.mark.parametrize(
        ("values", "is_plain"),
        [
            ({"num_gpu_blocks_override": 1, "block_size": 4}, True),
            (
                {
                    "worker": {
                        "name": "tenonry_testkit.kernel.faulty:FaultyWorker",
                        "options": {"fail_load": "none"},
                    }
                },
                True,
            ),
            (
                {
                    "scheduler": {
                        "name": "tenonry_testkit.kernel.faulty:FaultyScheduler",
                        "options": {"fail": "constructor"},
                    }
                },
                False,
            ),
        ],
    )
    def test_only_a_failure_that_says_too_little_is_traced(
        self, forked_children, fake_model_site, capfd, values, is_plain
    ):
        with pytest.raises(LaunchError):
            self.start(**values)
        log = capfd.readouterr().err
        assert "engine 0 could not be built" in log
        assert ("Traceback" not in log) is is_plain

    @pytest.mark.parametrize(
        ("values", "text"),
        [
            (
                {
                    "worker": {
                        "name": "tenonry_testkit.kernel.faulty:FaultyWorker",
                        "options": {"fail_load": "no weights"},
                    }
                },
                "no weights",
            ),
            ({"data_parallel_size": 2, "data_parallel_size_local": 1}, "tenonry keys FILE"),
        ],
    )
    def test_a_start_that_fails_ends_what_loggers_hold(
        self, forked_children, fake_model_site, values, text
    ):
        """A port, for instance: else no second start could have it."""
        logger = RecordingStatLogger(StatLoggerContext(served_config()))
        with pytest.raises(TenonryError, match=text):
            AsyncLLM(served_config(**values), stat_loggers={"rec": logger})
        assert logger.calls == ["shutdown"]

    def test_an_engine_that_takes_too_long_is_stopped(self, fake_model_site):
        """Q13."""
        with pytest.raises(
            LaunchError, match=r"not ready after 0.05 s: engine 0 \(.*\); raise --start-timeout"
        ):
            self.start(start_timeout=0.05)
        assert psutil.Process().children() == []

    @forked
    def test_an_engine_that_never_connects_is_stopped(self, fake_model_site, monkeypatch):
        """Q13: it is ready, and yet nothing can be sent to it."""
        monkeypatch.setattr(engines, "CONNECT_TIMEOUT_S", 0.05)
        monkeypatch.setattr(CoreClient, "unconnected", lambda _: {0})
        with pytest.raises(
            LaunchError, match=r"engines \[0\] are ready but did not connect their sockets"
        ):
            self.start()
        assert psutil.Process().children() == []

    @forked
    def test_a_hook_that_refuses_the_running_engine_stops_it(self, tmp_path, fake_model_site):
        fake_model_site.distribution(
            "late", entry_points={"tenonry.plugins": {"late": "late_hooks"}},
            modules={"late_hooks": raising_hooks("tenonry_engine_ready", "info")},
        )  # fmt: skip
        with pytest.raises(PluginFault, match="plugin late"):
            self.start(plugins={"allow": ["fake-model", "late"]})
        assert psutil.Process().children() == []

    def test_plugins_in_use_are_logged_in_one_line(self, fake_model_site, caplog):
        with caplog.at_level(logging.INFO):
            engine = self.start()
        engine.shutdown()
        (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("plugins: ")]
        assert "scheduler tenonry_testkit.fakes:ReferenceScheduler" in line
        assert "launcher process 0.1.0" in line
        assert "engine 0 uses fake tokens" in caplog.text

    def test_the_engines_process_has_a_name(self, serve):
        served = serve()
        assert " ".join(psutil.Process(served.pid).cmdline()).startswith("tenonry: engine 0")

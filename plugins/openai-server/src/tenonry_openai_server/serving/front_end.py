"""Construction of the configured front end, and the shared keys of its engines. Light; any process of a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tenonry.config import EngineConfig
from tenonry.transport.folder import RunDirectory
from tenonry.transport.keys import CurveKeys
from tenonry_openai_server.grouped import is_grouped
from tenonry_openai_server.settings import ServerConfig

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM
    from tenonry.client.engines import Engines


@contextmanager
def shared_keys(config: EngineConfig, settings: ServerConfig) -> Iterator[EngineConfig]:
    """Add a private key file for the engines of this server, if they need one and none is configured; removed at the
    end.
    """
    if not settings.prefill_engines or config.auth_key_file is not None:
        yield config
        return
    with closing(RunDirectory()) as folder:
        file = Path(folder.path) / "keys"
        file.touch(mode=0o600)
        file.write_text(CurveKeys.generate().encode(), "utf-8")
        yield config.replaced(auth_key_file=str(file))


def own_engines(config: EngineConfig) -> Engines:
    """The engines that a single server has, not yet started."""
    if is_grouped(config):
        from tenonry_scale_out.group import engines_of_group

        return engines_of_group(config, "server")
    from tenonry.client.engines import OwnedEngines

    return OwnedEngines(config, context="server")


def make_front_end(config: EngineConfig, settings: ServerConfig, engines: Engines) -> AsyncLLM:
    """Make the configured front end, once its engines have started. It shuts them down."""
    engine = _made(config, settings, engines)
    if settings.front_end_profile_dir is not None:
        from tenonry_scale_out.profile import LoopProfile, profile_front_end

        profile = LoopProfile(
            settings.front_end_profile_dir,
            compress=settings.front_end_profile_gzip,
            process="api-server 0",
        )
        profile_front_end(engine, profile)
    return engine


def _made(config: EngineConfig, settings: ServerConfig, engines: Engines) -> AsyncLLM:
    if settings.prefill_engines:
        from tenonry_scale_out.pairs import PairedLLM, PrefillPolicy

        policy = PrefillPolicy(settings.prefill_engines, settings.prefill_min_tokens)
        return PairedLLM(config, policy, engines=engines)
    from tenonry.client.async_llm import AsyncLLM

    return AsyncLLM(config, engines=engines)

"""The command `serve`. Light: flags are checked and the port is taken before anything slow is imported. Front end."""

from __future__ import annotations

import argparse

from tenonry.interfaces.command import Command
from tenonry_commands.arguments import add_engine_arguments


class ServeCommand(Command):
    """`tenonry serve MODEL …`: an OpenAI-compatible HTTP server in front of one model, or several loaded on request."""

    summary = "Serve one or several models over HTTP, for any OpenAI client."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        from tenonry_openai_server.hosting.settings import add_host_arguments
        from tenonry_openai_server.route_settings import ROUTE_PLUGINS
        from tenonry_openai_server.settings import add_server_arguments

        add_engine_arguments(parser, several=True, others=ROUTE_PLUGINS)
        add_server_arguments(parser)
        add_host_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        from tenonry_openai_server.hosting.settings import hosted_models
        from tenonry_openai_server.serving.front_end import shared_keys
        from tenonry_openai_server.serving.listener import listen
        from tenonry_openai_server.settings import configs_from_arguments

        hosted = hosted_models(args)
        if hosted is not None:
            from tenonry_openai_server.hosting.serve import serve_models

            return serve_models(hosted)
        config, settings = configs_from_arguments(args)
        if settings.headless:
            from tenonry_scale_out.node import run_headless

            return run_headless(config)
        sock, settings = listen(settings)
        with shared_keys(config, settings) as config:
            if settings.api_server_count > 1:
                from tenonry_openai_server.serving.api_servers import serve_many

                return serve_many(config, settings, sock)
            from tenonry_openai_server.serving.lifecycle import serve

            return serve(config, settings, sock)

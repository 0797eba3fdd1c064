"""Admission of requests for tokens by route plugins, such as by limits per tenant. Front end, event loop.

The callable of a route may have the attribute `admission`: a callable of an AdmissionContext, called once per server,
that returns an Admission, or None where nothing is to be checked. It then admits the requests of all routes, streams
included.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, MutableMapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from tenonry.interfaces.plugin import PluginSettings
from tenonry.outputs import RequestOutput
from tenonry.plugin.manager import blamed, resolve_point, settings_of
from tenonry_openai_server.points import ROUTES

if TYPE_CHECKING:
    from tenonry_openai_server.settings import ServerConfig

ADMISSION = "tenonry.admission"  # in the scope of a request: a RequestAdmission
TENANT = "tenonry.tenant"  # in the scope: prefix of the hash of the API key
Headers = list[tuple[bytes, bytes]]


class AdmissionContext(NamedTuple):
    """Context of an admission. `settings`: an instance of the route's `Settings`."""

    settings: PluginSettings
    api_server_count: int


class Grant(Protocol):
    """One request that was admitted."""

    def headers(self) -> Mapping[str, str]:
        """Headers of the response, when it starts."""

    def use(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Count tokens, when they are known."""

    def end(self) -> None:
        """The request has ended, or its client has left."""


class Admission(Protocol):
    """Admits requests for tokens."""

    def admit(self, key: str, headers: Headers) -> Grant:
        """Admit a request before its body is read. `key`: prefix of its API key's hash, "" without keys.

        Raises starlette's HTTPException, whose status, text and headers the client gets in the shape of its protocol.
        """


class RequestAdmission:
    """Grants of one HTTP request."""

    __slots__ = ("_admissions", "_grants")

    def __init__(self, admissions: Sequence[Admission]) -> None:
        self._admissions = admissions
        self._grants: list[Grant] = []

    def admit(self, scope: Mapping[str, Any]) -> None:
        """Admit the request, once. Raises HTTPException."""
        if not self._grants:
            for each in self._admissions:
                self._grants.append(each.admit(scope.get(TENANT, ""), scope["headers"]))

    def use(self, prompt_tokens: int, completion_tokens: int = 0) -> None:
        """Count tokens."""
        for grant in self._grants:
            grant.use(prompt_tokens, completion_tokens)

    async def counted(
        self, outputs: AsyncGenerator[RequestOutput, None]
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of a prompt and count their tokens."""
        prompt_tokens: int | None = None
        async with aclosing(outputs):
            async for output in outputs:
                new = 0 if prompt_tokens is not None else len(output.prompt_token_ids)
                prompt_tokens = new
                self.use(new, sum(len(each.token_ids) for each in output.outputs))
                yield output

    def headers(self) -> Headers:
        """Headers of the response."""
        return [
            (name.encode(), value.encode("latin-1"))
            for grant in self._grants
            for name, value in grant.headers().items()
        ]

    def end(self) -> None:
        """The request has ended."""
        for grant in self._grants:
            grant.end()


class AdmissionLayer:
    """Admits requests and adds rate-limit headers to their responses."""

    def __init__(self, app: ASGIApp, admissions: Sequence[Admission]) -> None:
        self.app = app
        self._admissions = admissions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        admission = scope[ADMISSION] = RequestAdmission(self._admissions)

        async def send_marked(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *admission.headers()]
            await send(message)

        try:
            await self.app(scope, receive, send_marked)
        finally:
            admission.end()


def count_tokens_of(scope: Mapping[str, Any], prompt_tokens: int, completion_tokens: int) -> None:
    """Count the tokens of a request of a route that calls the engine directly."""
    admission: RequestAdmission | None = scope.get(ADMISSION)
    if admission is not None:
        admission.use(prompt_tokens, completion_tokens)


def admissions(settings: ServerConfig) -> list[Admission]:
    """The admissions of the chosen routes. Raises ConfigError and PluginError."""
    return [*_admissions(settings)]


def _admissions(settings: ServerConfig) -> Iterable[Admission]:
    for choice in settings.route:
        factory, record = resolve_point(ROUTES, choice)
        make = getattr(factory, "admission", None)
        if make is not None:
            own = settings.section(settings_of(record))
            with blamed(record, "admission"):
                made = make(AdmissionContext(own, settings.api_server_count))
            if made is not None:
                yield made

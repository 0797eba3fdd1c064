"""GET /, the files of the page below /page, and GET /page/state. Front end, event loop.

The files are the same for everyone and need no key, so that a browser can load the form for one; /page/state needs it.
The page sends no request that would fail: `data-needs-key` in its HTML makes it wait for a key, and metrics are part of
the state.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from tenonry.errors import TenonryError
from tenonry_route_page.decided import latest_steps
from tenonry_route_page.settings import PageSettings

TYPES = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}
FILES = {
    "/": "index.html",
    **{
        f"/page/{name}": name
        for name in (
            "page.css",
            "page.js",
            "chat.js",
            "engine.js",
            "markdown.js",
            "server.js",
            "icon.svg",
        )
    },
}
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def build(context: Any) -> APIRouter:
    """The routes of the page, none with `--no-page`; `context` is the server's RouteContext."""
    router = APIRouter()
    if not context.settings.page:
        return router
    for path, name in FILES.items():
        router.get(path, include_in_schema=False)(_file(name, needs_key=context.needs_key))

    @router.get("/page/state", include_in_schema=False)
    async def state() -> Response:
        """Limits, metrics and plugins of the engines, and their latest steps where they are recorded."""
        engine = context.engine
        info = engine.info
        decisions, note = await _decisions(engine)
        rendered = await engine.render_metrics()
        return JSONResponse(
            {
                "num_engines": len(info.engine_indexes),
                "num_blocks": info.num_gpu_blocks,
                "max_num_seqs": context.config.max_num_seqs,
                "max_model_len": info.max_model_len,
                "max_images": context.config.max_images,
                "metrics": "" if rendered is None else rendered[0].decode(),
                "plugins": [
                    {
                        "kind": each.kind,
                        "name": each.name,
                        "distribution": each.distribution,
                        "version": each.version,
                    }
                    for each in info.plugins
                ],
                "decisions": decisions,
                "decisions_note": note,
            },
            headers={"cache-control": "no-store"},
        )

    return router


build.Settings = PageSettings  # type: ignore[attr-defined]
build.at_root = True  # type: ignore[attr-defined]
build.open_paths = frozenset(FILES)  # type: ignore[attr-defined]


def _file(name: str, *, needs_key: bool) -> Any:
    """A handler that answers with one file, which is read once."""
    content = (files("tenonry_route_page") / "static" / name).read_bytes()
    if needs_key:
        content = content.replace(b"<html ", b"<html data-needs-key ", 1)
    kind = TYPES[name.rpartition(".")[2]]

    async def file() -> Response:
        return Response(content, headers=HEADERS, media_type=kind)

    return file


async def _decisions(engine: Any) -> tuple[list[dict[str, int]], str]:
    """The latest steps, or none and the reason."""
    if "decisions" not in engine.calls:
        return [], "No decisions are recorded: tenonry-decisions is not in use."
    try:
        return latest_steps(await engine.calls["decisions"].records()), ""
    except TenonryError as error:
        return [], f"{error}."

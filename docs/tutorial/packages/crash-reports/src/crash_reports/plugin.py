"""Engine recovery `crash-reports`: a JSON file per crash, with the requests that ran. Front end."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import Field

from tenonry.interfaces.launcher import Death
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.recovery import EngineRecovery, RecoveryContext
from tenonry.messages import EngineCoreRequest


class CrashReportsOptions(PluginOptions):
    """Options of `--engine-recovery-option`."""

    folder: Path = Field(default=Path("crashes"), description="Folder of the reports.")


class CrashReports(EngineRecovery):
    """Writes reports and restarts nothing; the streams of a crashed engine end with EngineDeadError."""

    interface_version = 1
    Options = CrashReportsOptions

    def __init__(self, context: RecoveryContext) -> None:
        super().__init__(context)
        options = context.options
        self.folder = (
            options.folder if isinstance(options, CrashReportsOptions) else Path("crashes")
        )
        self.writer = ThreadPoolExecutor(1, "crash-reports")

    def on_death(
        self, index: int, death: Death, requests: Mapping[int, EngineCoreRequest]
    ) -> Collection[int]:
        report = {
            "time": time.time(),
            "engine": index,
            "reason": str(death),
            "exit_code": death.exit_code,
            "lost_node": death.lost_node,
            "requests": [self.described(handle, each) for handle, each in requests.items()],
        }
        self.writer.submit(self.write, f"engine-{index}-{time.time_ns()}.json", report)
        return ()

    def write(self, name: str, report: Mapping[str, object]) -> None:
        """Write a report. A folder may block, which must delay no stream."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(json.dumps(report, indent=2), "utf-8")

    def shutdown(self) -> None:
        self.writer.shutdown()

    def described(self, handle: int, request: EngineCoreRequest) -> dict[str, object]:
        """Facts of a request that ran."""
        completion = self.context.streams.completion(handle)
        return {
            "request_id": request.request_id,
            "prompt_tokens": len(request.prompt_token_ids),
            "output_tokens": len(completion.delivered_ids) if completion else 0,
            "tags": request.tags,
        }

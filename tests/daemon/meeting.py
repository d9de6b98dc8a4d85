"""A daemon beside a vLLM that others run: where the two are to meet."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.daemon.daemon_process import DaemonProcess


@contextmanager
def beside_vllm(folder: Path, model: Path, engine: str = "") -> Iterator[tuple[DaemonProcess, Path, Path]]:
    """(the daemon, the socket at which it waits, the file of its reports). engine: more lines of `[engine]`."""
    with tempfile.TemporaryDirectory() as short:  # a socket's path is short
        meeting, reports = Path(short) / "s", folder / "reports.jsonl"
        config = f"""
            [server]
            listen = "127.0.0.1:0"
            [admin]
            listen = "127.0.0.1:0"
            [model.target]
            path = {json.dumps(str(model))}
            [engine]
            backend = "vllm-serve"
            {engine}
            [engine.vllm]
            socket = {json.dumps(str(meeting))}
            [telemetry]
            reports_file = {json.dumps(str(reports))}
        """
        with DaemonProcess(folder, config) as daemon:
            yield daemon, meeting, reports

"""Spans, as a collector of OpenTelemetry gets them over HTTP from a real daemon."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from engine.api import RequestReport
from specd.config import tracing as section
from specd.config.layers import load
from specd.errors import ConfigError, UserError
from specd.telemetry.otel import read_headers
from specd.telemetry.tracing import speculation
from tests.daemon.daemon_process import wait_until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TEXT = "a text that must not be told"
BODY = {"prompt": TEXT, "max_tokens": 6, "specd": {"k": 2, "class": "chat", "report": True}}


@dataclass
class Collector:
    url: str
    spans: list[Span] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    authorized: set[str | None] = field(default_factory=set)


@contextmanager
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            there.raw.append(body)
            there.authorized.add(self.headers["Authorization"])
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    there.spans.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        there = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield there
        finally:
            server.shutdown()
            serving.join()


def attributes(span: Span) -> dict[str, Any]:
    def value(found: Any) -> Any:
        kind = found.WhichOneof("value")
        return (
            [value(one) for one in found.array_value.values]
            if kind == "array_value"
            else getattr(found, kind)
        )

    return {each.key: value(each.value) for each in span.attributes}


def test_each_request_is_a_span_of_its_callers_trace(daemons, tmp_path):
    """Test that a request's span goes on from its caller's, tells what speculation did, is named in the answer, and
    holds no text; that refusals and failures are told apart; and that a caller who does not trace is not traced."""
    (tmp_path / "headers").write_text("Authorization: Bearer token\n")
    hold = tmp_path / "hold"
    daemons.engine.behave(hold=str(hold))
    with collector() as there:
        daemon = daemons.start(
            f'[tracing]\nendpoint = "{there.url}"\nheaders_file = "{tmp_path / "headers"}"\n'
        ).ready()
        traced = {"headers": {"traceparent": f"00-{TRACE}-{PARENT}-01"}}
        answer = daemon.post("/v1/completions", BODY, **traced)
        chat = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 4, "stream": True}
        daemon.post("/v1/chat/completions", chat, **traced)
        daemon.post("/v1/completions", BODY | {"temperature": -1}, **traced)
        daemon.post("/v1/completions", BODY | {"prompt": "<fail>"}, **traced)
        hold.touch()
        failing = BODY | {"prompt": "<fail>", "stream": True}
        with httpx2.stream("POST", f"{daemon.url}/v1/completions", json=failing, **traced) as stream:
            hold.unlink()
            assert b"engine_error" in stream.read()
        unsampled = {"headers": {"traceparent": f"00-{TRACE}-{PARENT}-00"}}
        assert daemon.post("/v1/completions", BODY, **unsampled).headers["traceparent"].endswith("-00")
        assert "traceparent" not in daemon.get("/v1/models").headers
        daemon.process.terminate()
        assert daemon.wait() == 0
        wait_until(lambda: len(there.spans) == 5, "all spans")
    good, streamed, refused, failed, broken = there.spans
    assert (good.trace_id.hex(), good.parent_span_id.hex()) == (TRACE, PARENT)
    assert answer.headers["traceparent"] == f"00-{TRACE}-{good.span_id.hex()}-01"
    assert (good.name, good.kind) == ("POST /v1/completions", Span.SPAN_KIND_SERVER)
    report, told = answer.json()["specd"], attributes(good)
    wanted = {
        "specd.k_mean": 2.0,
        "specd.accepted": sum(report["accepted"]),
        "specd.rounds": report["rounds"],
        "specd.drafted": report["drafted"],
        "specd.examined": sum(report["examined"]),
        "specd.proposer": "ngram",
        "specd.class": "chat",
        "specd.target_revision": report["target_revision"],
        "specd.draft_revision": report["draft_revision"],
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.response.finish_reasons": ["length"],
        "http.response.status_code": 200,
    }
    assert {key: told.get(key) for key in wanted} == wanted
    assert good.status.code == Status.STATUS_CODE_UNSET
    assert attributes(streamed)["gen_ai.usage.output_tokens"] == 4
    assert (attributes(refused)["http.response.status_code"], refused.status.code) == (
        400,
        Status.STATUS_CODE_UNSET,
    )
    assert (attributes(failed)["error.type"], failed.status.code) == ("500", Status.STATUS_CODE_ERROR)
    assert attributes(broken)["http.response.status_code"] == 200
    assert (attributes(broken)["error.type"], broken.status.code) == (
        "engine_error",
        Status.STATUS_CODE_ERROR,
    )
    assert there.authorized == {"Bearer token"}
    assert not any(TEXT.encode() in raw for raw in there.raw)


def a_report(**changes: Any) -> RequestReport:
    known = {
        "rounds": 4,
        "drafted": 6,
        "examined": [3, 2],
        "accepted": [2, 1],
        "k_histogram": {0: 1, 2: 3},
        "proposers": {"ngram": 1, "eagle": 2},
        "prompt_tokens": 5,
        "tokens": 7,
    }
    return RequestReport(**known | changes)


def test_texts_of_a_request_are_summed_up():
    """Test that k is the mean over the rounds of all texts, and the proposer who drafted most often."""
    found = speculation([a_report(), a_report(k_histogram={4: 4}, proposers={"ngram": 4})])
    assert (found["specd.rounds"], found["specd.k_mean"], found["specd.proposer"]) == (8, 22 / 8, "ngram")
    assert (found["specd.drafted"], found["specd.examined"], found["specd.accepted"]) == (12, 10, 6)
    assert speculation([]) == {}


def test_a_missing_package_is_told_when_the_config_is_read(tmp_path, monkeypatch):
    """Test that an endpoint without the packages is refused with what to install, and no endpoint asks for none."""
    monkeypatch.setattr(section, "find_spec", lambda _: None)
    file = tmp_path / "specd.toml"
    file.write_text('[tracing]\nendpoint = "http://127.0.0.1:4318/v1/traces"\n')
    with pytest.raises(ConfigError, match=r"tracing.*pip install 'specd-llm\[tracing\]'"):
        load(file, env={})
    file.write_text("[tracing]\nsample = 0.5\n")
    assert load(file, env={}).config.tracing.sample == 0.5


@pytest.mark.parametrize("text", ["no colon", ": value", "Name:"])
def test_a_bad_line_of_headers_is_refused_without_quoting_it(tmp_path: Path, text: str):
    """Test that the file and the line are named, and what stands there is not."""
    file = tmp_path / "headers"
    file.write_text(f"Good: yes\n{text}\n")
    with pytest.raises(UserError, match=r"headers, line 2: write it as Name: value$"):
        read_headers(file)

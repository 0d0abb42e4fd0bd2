"""`make demo-watch`: spans of a real SDK come in, all answers are decided, and the end is told as it is."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from openai import APIError, OpenAI
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from examples.watch import demo, model
from examples.watch.app import HelpDesk, passages
from magistrate.server.app import create_app
from magistrate.server.settings import Settings
from magistrate.store import Store
from magistrate.watch.alerts import Alerts
from magistrate.watch.rules import read_rule_file
from test_otlp import PROTOBUF

ROOT = Path(__file__).resolve().parent.parent


class Poster(SpanExporter):
    """Sends spans as the exporter over HTTP does, to an application in this process."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        body = encode_spans(spans).SerializeToString()
        sent = self.client.post("/v1/traces", content=body, headers={"content-type": PROTOBUF})
        assert (sent.status_code, sent.content) == (200, b"")
        return SpanExportResult.SUCCESS


def test_the_help_desk_is_watched_and_held_against_its_script(tmp_path: Path) -> None:
    rules = demo.RULES.read_text(encoding="utf-8").replace("quiet: 1s", "quiet: 0s")
    (tmp_path / "rules.yaml").write_text(rules, encoding="utf-8")
    file, place, alerts = (
        read_rule_file(tmp_path / "rules.yaml"),
        tmp_path / "w.db",
        tmp_path / "alerts.jsonl",
    )
    script = model.script()
    questions = demo.asked(script)
    settings = Settings(store=str(place), watch=True, rules=tuple(file.rules), rule_file=file)
    resource = Resource({"deployment.environment.name": "production"})
    with (
        model.serving(script) as base_url,
        TestClient(create_app(settings)) as client,
        OpenAI(api_key="none", base_url=base_url, max_retries=0) as models,
    ):
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(Poster(client), schedule_delay_millis=60_000))
        tracer = provider.get_tracer("test")

        def ask(messages: Sequence[dict[str, str]]) -> str:
            with tracer.start_as_current_span("ChatCompletion") as span:
                span.set_attribute("openinference.span.kind", "LLM")
                said = models.chat.completions.create(model="scripted", messages=messages)  # type: ignore[arg-type]
                text = said.choices[0].message.content or ""
                span.set_attribute("llm.output_messages.0.message.content", text)
                return text

        desk, errors = HelpDesk(ask, tracer, passages()), 0
        for each in questions:
            try:
                desk.answer(each["question"], is_probe=each.get("probe", False))
            except APIError:
                errors += 1
        provider.shutdown()
        until = time.monotonic() + 60
        while not demo.is_decided(place, len(questions)) and time.monotonic() < until:
            time.sleep(0.05)
    with Store.open(place) as store:
        Alerts(store, file, clock=lambda: datetime.now(UTC)).step()
    assert demo.fires(place)
    found = demo.result(place, script, alerts)
    n, probes = len(script), len(questions) - len(script)
    assert found.states == {"judged": n - errors, "filtered": probes, "no_output": errors}
    assert found.traces == found.answers == len(questions)
    assert sum(map(len, found.said.values())) == n - errors
    assert len(found.said[True, True]) + len(found.said[True, False]) == found.known
    assert found.said[True, True], "of what is made up at least something is seen"
    told = demo.screen(found, 1, {"next": "magistrate serve"})
    assert f"{n - errors} judged" in told and f"{len(questions)} in all" in told
    assert "'too much is made up' firing" in told and told.count("\n") < 24, "it fits on a screen"


@pytest.mark.full
def test_the_whole_demonstration_runs_twice_at_once_and_leaves_nothing_behind() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "MAGISTRATE_TOKEN": "x"}
    made = ["make", "--no-print-directory", ".venv-watch/.watch"]
    subprocess.run(made, cwd=ROOT, env=environment, check=True, timeout=900)
    both = [
        subprocess.Popen(
            ["make", "--no-print-directory", "demo-watch"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for _ in range(2)
    ]
    for each in both:
        told, _ = each.communicate(timeout=240)
        assert each.returncode == 0, told
        assert "56 in all" in told and "'too much is made up' firing" in told
        with pytest.raises(ProcessLookupError):
            os.killpg(each.pid, 0)

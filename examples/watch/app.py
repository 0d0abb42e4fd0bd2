"""A small, typical RAG application: a help desk that looks up passages and lets a model answer.

Run: OPENAI_BASE_URL=… OTEL_EXPORTER_OTLP_ENDPOINT=… python examples/watch/app.py < QUESTIONS

It does not depend on Magistrate: OpenTelemetry's SDK sends its spans to any OTLP endpoint. OpenInference's
instrumentation of the OpenAI client records the model calls. The application records its own steps with the
keys of OpenInference.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.trace import Tracer

PASSAGES = Path(__file__).with_name("passages.txt")
SYSTEM = "You are the help desk of the Harbour Museum. Answer in one sentence, from the passages alone."
FOUND = 2  # passages that the model gets

Ask = Callable[[Sequence[dict[str, str]]], str]


@dataclass(frozen=True)
class HelpDesk:
    """Answers questions from passages: `ask` sends messages to a model, `tracer` records each step."""

    ask: Ask
    tracer: Tracer
    passages: Sequence[str]

    def answer(self, question: str, *, is_probe: bool = False) -> str:
        """Return the model's answer, or raise its error. `is_probe` marks questions of the monitoring."""
        with self.tracer.start_as_current_span("help desk") as span:
            span.set_attribute("openinference.span.kind", "CHAIN")
            span.set_attribute("input.value", question)
            span.set_attribute("app.probe", is_probe)
            text = "\n\n".join(self.search(question))
            asked = f"Passages:\n{text}\n\nQuestion: {question}"
            said = self.ask([{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}])
            span.set_attribute("output.value", said)
            return said

    def search(self, question: str) -> list[str]:
        """Return the passages that share most words with the question; rare words weigh more."""
        with self.tracer.start_as_current_span("search") as span:
            span.set_attribute("openinference.span.kind", "RETRIEVER")
            span.set_attribute("input.value", question)
            bags = [words(each) for each in self.passages]
            seen = Counter(word for bag in bags for word in bag)
            weight = {word: math.log(len(bags) / n) for word, n in seen.items()}
            asked = words(question)
            scores = [sum(weight[word] for word in asked & bag) / math.sqrt(len(bag)) for bag in bags]
            best = sorted(range(len(bags)), key=lambda place: -scores[place])[:FOUND]
            for rank, place in enumerate(best):
                key = f"retrieval.documents.{rank}.document"
                span.set_attribute(f"{key}.id", f"passage-{place + 1}")
                span.set_attribute(f"{key}.content", self.passages[place])
                span.set_attribute(f"{key}.score", scores[place])
            return [self.passages[place] for place in best]


def words(text: str) -> frozenset[str]:
    """Return the set of words of a text, cut to five letters to ignore inflection."""
    return frozenset(word[:5] for word in re.findall(r"\w+", text.lower()))


def passages() -> list[str]:
    """Return the passages that the help desk knows."""
    return PASSAGES.read_text(encoding="utf-8").splitlines()


def main() -> None:
    """Answer the questions of standard input, one JSON object per line."""
    from openai import APIError, OpenAI
    from openinference.instrumentation.openai import OpenAIInstrumentor
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = {"service.name": "help-desk", "deployment.environment.name": "production"}
    provider = TracerProvider(resource=Resource.create(resource))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=500))
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    client = OpenAI(api_key=os.environ.get("OPENAI_API_KEY", "none"), max_retries=0)

    def ask(messages: Sequence[dict[str, str]]) -> str:
        found = client.chat.completions.create(model="scripted", messages=messages, temperature=0)
        return found.choices[0].message.content or ""

    desk = HelpDesk(ask, provider.get_tracer("help-desk"), passages())
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            desk.answer(asked["question"], is_probe=asked.get("probe", False))
        except APIError as error:
            print(f"no answer to {asked['question']!r}: {error}", file=sys.stderr)
    provider.shutdown()  # sends the remaining spans


if __name__ == "__main__":
    main()

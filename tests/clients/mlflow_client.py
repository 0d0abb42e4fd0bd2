"""MLflow's tracing of the OpenAI client, and its decorator for the application's own steps."""

from __future__ import annotations

import mlflow
from conversation import DOCUMENTS, QUESTION, ask, ask_streaming, found
from mlflow.entities import Document, SpanType


@mlflow.trace(span_type=SpanType.RETRIEVER)
def search(question: str) -> list[Document]:
    """Find the same documents for every question."""
    return [Document(each["content"], {"score": each["score"]}, each["id"]) for each in found(DOCUMENTS)]


@mlflow.trace(span_type=SpanType.CHAIN)
def desk(question: str) -> str:
    """Answer a question from the documents that are found."""
    search(question)
    return ask()


mlflow.openai.autolog()
for step in (lambda: desk(QUESTION), ask, ask_streaming):
    step()
    print((mlflow.get_last_active_trace_id() or "").removeprefix("tr-"))
mlflow.flush_trace_async_logging()

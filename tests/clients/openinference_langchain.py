"""OpenInference's instrumentation of LangChain: a chain of a retriever, a prompt and a model."""

from __future__ import annotations

from collections.abc import Sequence

from conversation import DOCUMENTS, MESSAGES, MODEL, QUESTION, SYSTEM, TEMPLATE, found, sending
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.sdk.trace import TracerProvider


class Shelf(BaseRetriever):
    """Finds the same documents for every question."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(each["content"], metadata={"source": each["id"]}) for each in found(DOCUMENTS)]


def joined(documents: Sequence[Document]) -> str:
    """Return the text of documents as the prompt has it."""
    return "\n".join(each.page_content for each in documents)


provider = sending(TracerProvider())
LangChainInstrumentor().instrument(tracer_provider=provider)

model = ChatOpenAI(model=MODEL, max_retries=0)
prompt = ChatPromptTemplate.from_messages([("system", SYSTEM), ("user", TEMPLATE)])
passages = {"passages": Shelf() | joined, "question": RunnablePassthrough()}

(passages | prompt | model | StrOutputParser()).invoke(QUESTION)
model.invoke(MESSAGES)
list(model.stream(MESSAGES))
provider.shutdown()

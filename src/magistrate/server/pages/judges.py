"""The pages of judges and of models: what is there, what each needs, how good it is."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from magistrate.report.judges import milliseconds, option_words
from magistrate.server.rendering import page
from magistrate.server.views.judges import JudgeLine, judge_view, judges_view
from magistrate.server.views.models import models_view

router = APIRouter()


@router.get("/judges")
def judges(request: Request) -> Response:
    """All installed judges."""
    view = judges_view()
    return page(request, "judges.html", view=view, milliseconds=milliseconds, option_words=option_words)


@router.get("/judges/{name}")
def judge(request: Request, name: str) -> Response:
    """One of them."""
    found = judge_view(name)
    line, view = (found, None) if isinstance(found, JudgeLine) else (found.line, found)
    words = [option_words(*each) for each in line.options.items()]
    return page(request, "judge_detail.html", line=line, view=view, options=words, milliseconds=milliseconds)


@router.get("/models")
def models(request: Request) -> Response:
    """The catalogue of models."""
    return page(request, "models.html", view=models_view())

"""Judges and models as data."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Response

from magistrate.server.api.telling import refusals, told
from magistrate.server.views.judges import JudgeLine, JudgesView, JudgeView, judge_view, judges_view
from magistrate.server.views.models import ModelsView, models_view

router = APIRouter(tags=["judges"])


@router.get("/judges", response_model=JudgesView)
def judges() -> Response:
    """Every installed judge, also those that cannot be used, with why."""
    return told(asdict(judges_view()))


@router.get("/judges/{name}", response_model=JudgeView | JudgeLine, responses=refusals(404, 422))
def judge(name: str) -> Response:
    """One judge with everything that is known of it; only its line where it cannot be loaded."""
    return told(asdict(judge_view(name)))


@router.get("/models")
def models() -> ModelsView:
    """The catalogue of models with which of them are here, and what of the package is installed."""
    return models_view()

"""Pages of label queues: the list, one queue with its statistics, and the annotator's name."""

from __future__ import annotations

import base64
import getpass
import hmac
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Form, HTTPException, Path, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field

from magistrate.errors import SpecError
from magistrate.labels.decisions import Finding, findings
from magistrate.labels.estimates import People, Progress, judge_right, people, progress
from magistrate.labels.tasks import lease_end
from magistrate.metrics.classification import Estimate
from magistrate.server.responses import answering_with, page, segment
from magistrate.server.roles import WITH_TOKEN, visitor_of
from magistrate.server.security import local_path
from magistrate.server.settings import Settings
from magistrate.server.state import LRUCache, RequestStore, stores_of
from magistrate.store import Store
from magistrate.store.labels import LONGEST_ANNOTATOR, Queue, checked_annotator
from magistrate.types import Outcome

YEAR = 31_536_000
MOST_NUMBER = 2**31  # limit of item numbers in the store
TOLD_EVERY, MANY = (
    10,
    1_000,
)  # labelled items between updates of the share; from so many on, ten times as many

Number = Annotated[int, Path(lt=MOST_NUMBER)]

router = APIRouter()


# --- who labels -----------------------------------------------------------------------------------


class Annotators:
    """The names of annotators. Stored in `app.state`.

    A user labels under their own name and no other. Other visitors have names in cookies signed by the
    server: without a token there is a single visitor, who is called `usual` (the local user name) until
    they give another name. With the server's token everybody is asked for a name first, which may not be
    that of a user.
    """

    def __init__(self, settings: Settings) -> None:
        self._key = hmac.digest(
            (settings.token or secrets.token_urlsafe(32)).encode(), b"magistrate annotator", "sha256"
        )
        # Cookies do not tell ports apart, and several servers may run on one machine.
        self._cookie = f"magistrate_annotator_{settings.port}"
        self.usual = None if settings.token else _user()

    def current(self, request: Request) -> str | None:
        """Return the annotator's name from the request, None if they must give one first.

        That of a user is known. A cookie not signed by this server, for example after a restart, also
        yields None, so that nobody labels under another person's name.
        """
        if (user := visitor_of(request).user) is not None:
            return user
        given = request.cookies.get(self._cookie)
        if given is None:
            return self.usual
        encoded, _, signature = given.rpartition(".")
        if not hmac.compare_digest(self._signature(encoded).encode(), signature.encode()):
            return None
        try:
            return self.chosen(request, base64.urlsafe_b64decode(encoded).decode())
        except (SpecError, ValueError, HTTPException):
            return None

    def chosen(self, request: Request, name: str) -> str:
        """Return a name that the visitor gives, if they may label under it.

        Raises `SpecError` if it is invalid, and `HTTPException` with status 403 if it is somebody else's.
        """
        name, visitor = checked_annotator(name), visitor_of(request)
        if visitor.user is not None and name != visitor.user:
            raise HTTPException(403, f"you are signed in as {visitor.user} and label under that name only")
        if visitor == WITH_TOKEN:
            with stores_of(request).one() as store:
                if store.users.is_user(name):
                    raise HTTPException(403, f"{name} is a user: only who has their token labels as {name}")
        return name

    def remember(self, response: Response, name: str, secure: bool) -> None:
        """Set the cookie that holds the annotator's name."""
        encoded = base64.urlsafe_b64encode(name.encode()).decode()
        response.set_cookie(
            self._cookie,
            f"{encoded}.{self._signature(encoded)}",
            path="/label",
            max_age=YEAR,
            httponly=True,
            samesite="strict",
            secure=secure,
        )

    def _signature(self, encoded: str) -> str:
        return hmac.digest(self._key, encoded.encode("utf-8", "surrogatepass"), "sha256").hex()


def _user() -> str:
    try:
        return checked_annotator(getpass.getuser())
    except (OSError, KeyError, ImportError, SpecError):
        return "local"


def annotator_of(request: Request) -> str | None:
    """Return the annotator's name from the request, None if they must give one first."""
    found: Annotators = request.app.state.annotators
    return found.current(request)


def required_annotator(request: Request) -> str:
    """Return the annotator's name from the request. Raises status 422 if there is none."""
    name = annotator_of(request)
    if name is None:
        raise HTTPException(422, "enter your name first, on the page of the queue")
    return name


def queue_address(name: str, *rest: str) -> str:
    """Return the URL of a queue's page, or of a page below it."""
    return "/".join(["/label", segment(name), *rest])


# --- what is shown --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """A queue with its statistics.

    `commented` maps the numbers of items with comments to how many there are. `judges` maps each judge of the
    run to its agreement with people, as a share of samples. `mine` is the number of items that the annotator
    has labelled, `to_go` the number that still want a label from anybody.
    """

    queue: Queue
    done: Progress
    people: People
    judges: Mapping[str, Estimate]
    conflicts: tuple[int, ...]
    decided: tuple[int, ...]
    commented: Mapping[int, int]
    mine: int

    @property
    def to_go(self) -> int:
        """The number of items that want another label."""
        return self.done.n_waiting


def queue_view(store: Store, name: str, annotator: str | None) -> QueueView:
    """Return the current state of a queue. Raises `SpecError` if there is none of this name."""
    queue = store.labels.find(name)
    found, samples = findings(store, queue), store.labels.samples(queue.name)
    return QueueView(
        queue=queue,
        done=progress(queue, found, samples),
        people=people(queue, found, samples),
        judges={
            judge: judge_right(queue, found, samples, said) for judge, said in _verdicts(store, queue).items()
        },
        conflicts=tuple(each.item.position + 1 for each in found if each.state == "conflict"),
        decided=tuple(each.item.position + 1 for each in found if each.state == "adjudicated"),
        commented=Counter(each.position + 1 for each in store.comments.of(queue.name)),
        mine=_mine(found, annotator),
    )


def _verdicts(store: Store, queue: Queue) -> dict[str, dict[str, Outcome]]:
    """Return the outcomes of the queue's run by judge and sample id; empty if the run was deleted."""
    if queue.run_id is None:
        return {}
    with store.snapshot() as moment:
        try:
            judges = moment.record(queue.run_id).judges
        except SpecError:
            return {}
        return {
            judge: {each.sample_id: each for each in moment.bare_outcomes(queue.run_id, judge)}
            for judge in judges
        }


def _mine(found: Sequence[Finding], annotator: str | None) -> int:
    return sum(any(label.annotator == annotator for label in each.labels) for each in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Progress shown while labelling. `figure` is the share, updated after every ten labelled items."""

    mine: int
    n_items: int
    to_go: int
    figure: str | None

    def words(self, who: str) -> str:
        """Describe the progress for an annotator."""
        return f"{who}: {self.mine:,} labelled, {self.to_go:,} wanted of anybody"


def standing(request: Request, store: Store, queue: Queue, annotator: str) -> Standing:
    """Return the progress of a queue, for the page of an item."""
    counts = store.labels.counts(queue.name, annotator)
    n, figure = counts.labelled, None
    # The share takes all labels of the queue: many are not read again for every few more.
    if told := n // (TOLD_EVERY if n < MANY else MANY // 10):
        kept: LRUCache = request.app.state.label_figures
        figure = kept.get_or_make(
            (queue.name, queue.created_at, n < MANY, told), lambda: _words(store, queue)
        )
    return Standing(mine=counts.mine, n_items=counts.n_items, to_go=counts.waiting, figure=figure)


def _words(store: Store, queue: Queue) -> str:
    return progress(queue, findings(store, queue), store.labels.samples(queue.name)).words


# --- pages ----------------------------------------------------------------------------------------


@router.get("/label")
def queues_page(request: Request, store: RequestStore) -> Response:
    """Show all queues, newest first."""
    rows = []
    for queue in store.labels.queues():
        found = findings(store, queue)
        labelled = sum(bool(each.labels) for each in found)
        rows.append((queue, labelled, sum(each.state == "conflict" for each in found)))
    return page(request, "label_queues.html", rows=rows, address=queue_address)


@router.get("/label/{name}")
def queue_page(
    request: Request, name: str, store: RequestStore, end: Annotated[bool, Query()] = False
) -> Response:
    """Show a queue with its statistics; `end`: there was no item left to hand out."""
    who = annotator_of(request)
    view = queue_view(store, name, who)
    return page(
        request,
        "label_queue.html",
        view=view,
        who=who,
        end=end,
        address=queue_address,
        longest=LONGEST_ANNOTATOR,
    )


@router.post("/label/{name}/annotator")
def call_yourself(
    request: Request,
    name: str,
    store: RequestStore,
    annotator: Annotated[str, Form(max_length=1000)] = "",
    following: Annotated[str, Form(max_length=2000)] = "",
) -> Response:
    """Remember the name under which somebody labels."""
    found = store.labels.find(name)
    annotators: Annotators = request.app.state.annotators
    with answering_with(SpecError, 422):
        chosen = annotators.chosen(request, annotator)
    back = local_path(following)
    response = RedirectResponse(back if back.startswith("/label/") else queue_address(found.name), 303)
    annotators.remember(response, chosen, request.scope["scheme"] == "https")
    return response


@router.get("/label/{name}/next")
def next_item(
    request: Request,
    name: str,
    store: RequestStore,
    but: Annotated[list[Annotated[int, Field(ge=0, lt=MOST_NUMBER)]] | None, Query(max_length=50)] = None,
) -> Response:
    """Redirect to the next item, or to the queue's page if there is none; `but` lists items to skip."""
    queue = store.labels.find(name)
    who = annotator_of(request)
    if who is None:
        return RedirectResponse(queue_address(queue.name), 303)
    now = datetime.now(UTC)
    passed = [number - 1 for number in but or ()]
    position = store.labels.claim(queue.name, who, now=now, until=lease_end(now), but=passed)
    if position is None:
        return RedirectResponse(f"{queue_address(queue.name)}?end=1", 303)
    return RedirectResponse(queue_address(queue.name, str(position + 1)), 303)

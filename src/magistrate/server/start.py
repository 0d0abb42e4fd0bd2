"""Start a run from the page: a form, and the runs that this server executes, one after the other.

A visitor chooses among data that the store or the package has, installed judges, and models that the operator
of the server allows. Judges of files, options that could name one, and addresses are refused by the rules of
`POST /api/judge`.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from magistrate import _logging
from magistrate.api.evaluate import RunSession
from magistrate.datasets import Problem
from magistrate.datasets.named import at_hand, catalogue
from magistrate.engines.base import DEFAULT, Engine
from magistrate.errors import InputError, MagistrateError, SpecError
from magistrate.judges.base import Judge
from magistrate.judges.registry import DEFAULT_JUDGE, asks_none, spelled
from magistrate.runs.execute import Judged
from magistrate.runs.prepare import NO_OVERRIDES, Overrides, RunPlan
from magistrate.runs.rejudge import data_of_run, run_with_data
from magistrate.runs.spec import RunSpec, spec_from
from magistrate.server.judges import JudgeLine, judges_view
from magistrate.server.judging import BusyError, judge_of, model_of, models_here
from magistrate.server.responses import from_script, page, run_address
from magistrate.server.roles import visitor_of
from magistrate.server.settings import Settings
from magistrate.server.state import JobQueue, Pending, Refused, RequestStore
from magistrate.store import Store

KEPT = 30  # runs started here that are listed
MOST_WAITING = 8
MOST_JUDGES = 10
DATA_LISTED = 50
LONGEST = 300
WAIT_SECONDS = 1.0  # how long the form's response waits for the run, so that a browser goes straight to it
PAUSE = 30  # seconds, in Retry-After

State = Literal["waiting", "preparing", "judging", "ended", "stopped", "failed"]
Typed = Annotated[str, Form(max_length=LONGEST)]

router = APIRouter()
_log = _logging.get("server")


# --- what may be chosen -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataChoice:
    """Data that may be judged. `value` is `named:NAME`, `stored:NAME@2`, or `run:` with the digest of a run's
    data.
    """

    value: str
    words: str


def choices_of(store: Store) -> list[tuple[str, list[DataChoice]]]:
    """Return the data to choose from, in groups."""
    with store.snapshot() as moment:
        judged = [each for each in moment.judged_data(limit=DATA_LISTED) if each.n_done]
        stored = moment.stored_sets()
    packaged = [each.name for each in catalogue().values() if each.packaged is not None]
    views = [(each.name, view.name) for each in catalogue().values() for view in each.views]
    named = [*packaged, *(f"{name}:{view}" for name, view in views if at_hand(name, view))]
    groups = [
        ("In the package or on this machine", [DataChoice(f"named:{each}", each) for each in named]),
        ("Stored", [DataChoice(f"stored:{each.ref}", f"{each.ref}, {each.n_samples:,}") for each in stored]),
        (
            "Judged before",
            [
                DataChoice(f"run:{each.digest}", f"{each.name} {each.digest[:8]}, {each.n_samples:,}")
                for each in judged
            ],
        ),
    ]
    return [(name, found) for name, found in groups if found]


def engines_of(settings: Settings) -> list[str]:
    """Return the models that a run may call: those installed here, then those that the operator allows."""
    return list(dict.fromkeys([*models_here(), *settings.run_models]))


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForm:
    """The input of the form, unchanged; missing fields are empty."""

    data: str = ""
    judges: tuple[str, ...] = ()
    more: str = ""
    model: str = ""
    name: str = ""
    samples: str = ""
    seconds: str = ""
    calls: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be judged, checked: the judges, the specification, and the digest of a run's data if the
    samples come from there.
    """

    shown: str
    judges: Sequence[Judge]
    spec: RunSpec
    digest: str | None

    def plan(self, session: RunSession) -> RunPlan:
        """Open the data and the engine. Raises the errors of a run that cannot be executed."""
        if self.digest is None:
            return session.prepare(self.spec, NO_OVERRIDES, judges=self.judges)
        record = run_with_data(session.store, self.digest)
        dataset = data_of_run(session.store, record, self.spec.dataset.limit)
        plan = session.prepare(self.spec, Overrides(dataset=dataset), judges=self.judges)
        return replace(plan, dataset_version=record.dataset_version)


def order_of(form: StartForm, store: Store, settings: Settings) -> Order:
    """Check a form. Raises `SpecError` or `InputError` that says what cannot be had."""
    words = list(
        dict.fromkeys([*form.judges, *(line.strip() for line in form.more.splitlines() if line.strip())])
    )
    if not words:
        raise InputError("choose a judge, at least one")
    if len(words) > MOST_JUDGES:
        raise InputError(f"a run has at most {MOST_JUDGES} judges here, and {len(words)} are chosen")
    judges = [judge_of(each) for each in words]
    model = form.model if form.model in settings.run_models else model_of(form.model)
    source, digest = _source(form.data, store)
    limit = _number("samples", form.samples, int)
    spec = spec_from(
        {
            "dataset": {"source": source, "limit": limit, **({"max_unread": 1.0} if digest else {})},
            "judges": [spelled(each) for each in judges],
            "engines": {} if model is None or asks_none(judges) else {DEFAULT: {"model": model}},
            "workers": 1,  # the server has other requests to answer
            "limits": {
                "max_seconds": _number("seconds", form.seconds, float),
                "max_calls": _number("calls", form.calls, int),
            },
            "name": form.name.strip() or None,
        }
    )
    shown = form.data.partition(":")[2]
    return Order(shown[:12] if digest else shown, judges, spec, digest)


def _source(data: str, store: Store) -> tuple[str, str | None]:
    """Return how a specification names the chosen data, and the digest if a run has it. Anything that is not
    known, such as a path or an address, is refused.
    """
    kind, _, word = data.partition(":")
    if kind == "run" and word:
        run_with_data(store, word)
        return "rows", word
    if kind == "stored" and word:
        return store.find_dataset(word).ref, None
    name, _, view = word.partition(":")
    if kind == "named" and name in catalogue() and not (view and catalogue()[name].packaged):
        if not at_hand(name, view or None):
            raise InputError(
                f"{word} is not on this machine; fetch it there: magistrate run {name} --limit 1"
            )
        return word, None
    raise SpecError("choose data of the list: files and addresses are judged on the command line only")


def _number(what: str, text: str, kind: Callable[[str], Any]) -> Any:
    """Return the positive number in a field of the form; None if it is empty."""
    if not text.strip():
        return None
    try:
        found = kind(text.strip())
    except ValueError:
        found = 0
    if not 0 < found < 1e12:
        raise InputError(f"the limit of {what} is a number greater than 0, got {text.strip()[:40]!r}")
    return found


# --- execution --------------------------------------------------------------------------------------


class Started:
    """A run that was started here, readable from any thread. `run_id` is None until the run exists."""

    def __init__(self, order: Order, at: datetime) -> None:
        self.id = secrets.token_urlsafe(12)
        self.order = order
        self.at = at
        self.state: State = "waiting"
        self.run_id: str | None = None
        self.error: str | None = None
        self.changed = threading.Event()  # the run exists, or there will be none
        self._lock = threading.Lock()
        self._stopped = False
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended, by itself, by `stop` or by an error."""
        return self.state in ("ended", "stopped", "failed")

    def stop(self) -> None:
        """Stop it: at once if it is waiting, else as Ctrl-C does, so that its outcomes are kept."""
        with self._lock:
            self._stopped = True
            if self._task is not None:
                loop, task = self._task
                loop.call_soon_threadsafe(task.cancel)

    def execute(self, place: str) -> None:
        """Execute it in the calling thread."""
        try:
            with RunSession(place) as session, asyncio.Runner() as runner:
                self._enter("preparing")
                plan = self.order.plan(session)
                runner.run(self._judge(session, plan))
            self.end("ended")
        except asyncio.CancelledError:
            self.end("stopped")
        except MagistrateError as error:
            self.end("failed", str(error))
        except BaseException as error:  # also a library's panic: the next run must get its turn
            _log.error("start.failed", error=type(error).__name__, message=str(error))
            self.end(
                "failed", f"an error in the program ({type(error).__name__}); the server's log says more"
            )

    async def _judge(self, session: RunSession, plan: RunPlan) -> None:
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self._task = asyncio.get_running_loop(), task
        self._enter("preparing")
        try:
            await session.start(plan, self)
        finally:
            with self._lock:
                self._task = None

    def _enter(self, state: State) -> None:
        if self._stopped:
            raise asyncio.CancelledError
        self.state = state

    def end(self, state: State, error: str | None = None) -> None:
        """Note that it is over, and why. The store has the status of the run, if there is one."""
        self.error, self.state = error, state
        self.changed.set()

    # As a ProgressListener of the run:

    def started(self, run_id: str, total: int | None, engine: Engine, done: int) -> None:
        """The run exists."""
        self.run_id = run_id
        self.state = "judging"
        self.changed.set()

    def judged(self, judged: Judged) -> None:
        """One more outcome is stored; the run's page reads it from there."""

    def finished(self, problems: Sequence[Problem], stopped: str | None) -> None:
        """The run is over; its status and its reason are stored."""


@dataclass(slots=True)
class RunStarter:
    """Executes runs for visitors, one after the other, and keeps the newest `KEPT` of them in memory."""

    place: str
    clock: Callable[[], datetime]
    jobs: JobQueue = field(
        default_factory=partial(JobQueue, name="magistrate-runs", most_waiting=MOST_WAITING, kept=0)
    )
    _kept: OrderedDict[str, Started] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # every request has a thread

    def begin(self, order: Order) -> Started:
        """Execute an order when its turn comes. Raises `BusyError` if too many wait."""
        made = Started(order, self.clock())
        if isinstance(self.jobs.submit(made.id, partial(made.execute, self.place)), Refused):
            raise BusyError(PAUSE)
        with self._lock:
            self._kept[made.id] = made
            over = [id for id, each in self._kept.items() if each.over]
            for id in over[: max(len(self._kept) - KEPT, 0)]:
                del self._kept[id]
        return made

    def find(self, id: str) -> Started:
        """Return what was started under this id. Raises `SpecError` if it is not known any more."""
        if (found := self._kept.get(id)) is None:
            raise SpecError("nothing was started under this address, or the server was started anew since")
        return found

    def of_run(self, run_id: str) -> Started | None:
        """Return what executes this run now, if it was started here."""
        return next((each for each in self.recent() if each.run_id == run_id and not each.over), None)

    def recent(self) -> list[Started]:
        """Return what was started here, the newest first."""
        with self._lock:
            return list(reversed(self._kept.values()))

    def ahead(self, started: Started) -> int:
        """Return how many runs come before one that waits."""
        found = self.jobs.find(started.id)
        return found.ahead if isinstance(found, Pending) else 0

    def stop(self, id: str) -> Started:
        """Stop a run. Raises `SpecError` as `find` does."""
        found = self.find(id)
        found.stop()
        if self.jobs.cancel(found.id):
            found.end("stopped")
        return found

    def close(self) -> None:
        """Stop all runs, so that each is interrupted and can be resumed, and start no more."""
        for each in self.recent():
            if not each.over:
                each.stop()
        self.jobs.close()


# --- pages ------------------------------------------------------------------------------------------


def starter_of(request: Request) -> RunStarter:
    """Return what executes runs for the application that handles a request."""
    found: RunStarter = request.app.state.starter
    return found


def judge_groups() -> list[tuple[str, list[JudgeLine]]]:
    """Return the judges that can be used over HTTP, in groups."""
    found = ((name, [each for each in judges if each.asked_here]) for name, judges in judges_view().groups())
    return [(name, judges) for name, judges in found if judges]


def _page(
    request: Request, store: Store, form: StartForm, error: str | None = None, status: int = 200
) -> Response:
    groups = choices_of(store)
    starter = starter_of(request)
    return page(
        request,
        "start.html",
        status=status,
        form=form,
        error=error,
        groups=groups,
        is_listed=any(each.value == form.data for _, found in groups for each in found),
        judges=judge_groups(),
        models=engines_of(request.app.state.settings),
        most_judges=MOST_JUDGES,
        recent=[(each, starter.ahead(each)) for each in starter.recent()],
    )


@router.get("/start")
def form(
    request: Request, store: RequestStore, data: Annotated[str, Query(max_length=1000)] = ""
) -> Response:
    """Show the form, and what was started here."""
    return _page(request, store, StartForm(data=data or "named:quickstart", judges=(DEFAULT_JUDGE,)))


@router.post("/start")
def begin(
    request: Request,
    store: RequestStore,
    judge: Annotated[list[str] | None, Form()] = None,
    data: Annotated[str, Form(max_length=1000)] = "",
    more: Annotated[str, Form(max_length=2_000)] = "",
    model: Typed = "",
    name: Annotated[str, Form(max_length=200)] = "",
    samples: Typed = "",
    seconds: Typed = "",
    calls: Typed = "",
) -> Response:
    """Start a run, or show the form again with the error."""
    sent = StartForm(
        data=data,
        judges=tuple(judge or ()),
        more=more,
        model=model,
        name=name,
        samples=samples,
        seconds=seconds,
        calls=calls,
    )
    try:
        order = order_of(sent, store, request.app.state.settings)
        made = starter_of(request).begin(order)
    except BusyError as error:
        response = _page(
            request, store, sent, f"too many runs wait already; try again in {error.seconds} s", 429
        )
        response.headers["Retry-After"] = str(error.seconds)
        return response
    except MagistrateError as error:
        return _page(request, store, sent, str(error), 422)
    store.audit.add(visitor_of(request).who, "start run", sent.data, " ".join(map(spelled, order.judges)))
    made.changed.wait(WAIT_SECONDS)
    return RedirectResponse(_address(made), 303)


@router.get("/start/{id}")
def started(request: Request, id: str) -> Response:
    """Show a run that waits or could not be started; once it exists, lead to its page."""
    found = starter_of(request).find(id)
    if found.run_id is None:
        return page(request, "starting.html", started=found, ahead=starter_of(request).ahead(found))
    if from_script(request.scope):
        return Response(headers={"HX-Redirect": run_address(found.run_id)})
    return RedirectResponse(run_address(found.run_id), 303)


@router.post("/start/{id}/stop")
def stop(request: Request, id: str, store: RequestStore) -> Response:
    """Stop a run that was started here; its outcomes are kept, and it can be resumed."""
    found = starter_of(request).find(id)
    if not found.over:
        store.audit.add(visitor_of(request).who, "stop run", found.run_id or found.order.shown)
    starter_of(request).stop(id)
    return RedirectResponse(_address(found), 303)


def _address(made: Started) -> str:
    return f"/start/{made.id}" if made.run_id is None else run_address(made.run_id)

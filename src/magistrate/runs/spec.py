"""The specification of a run, as a run file holds it: data, judges, engines, limits and gates.

The same structure is stored with every run, resolved, so that the run can be resumed and replayed. Paths in
a run file are relative to the folder of the file. A resolved specification has absolute paths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from magistrate._yaml import DIALECT, Document, Key, dump_document, read_document
from magistrate.datasets.fields import check_labels, check_mapping
from magistrate.datasets.files import looks_like_path
from magistrate.datasets.named import catalogue
from magistrate.datasets.selection import Selection
from magistrate.engines.base import CONCURRENCY, DEFAULT, Engine, EngineSettings
from magistrate.engines.prices import Price
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.report.gates import Gate
from magistrate.runs import options
from magistrate.runs.limits import Limits
from magistrate.runs.options import Option

STDIN = "-"


def _under(key: str, value: Any) -> Any:
    """Expand a bare string to a part in which only `key` is set."""
    return {key: value} if isinstance(value, str) else value


def _one(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _judge(value: Any) -> Any:
    """Convert `{rubric: {most: 2}}` to the equivalent `rubric:most=2`."""
    if isinstance(value, Mapping) and len(value) == 1:
        [(name, options)] = value.items()
        if options is None or options == {}:
            return name
        if isinstance(options, Mapping) and all(isinstance(each, Plain) for each in options.values()):
            return f"{name}:" + ",".join(f"{key}={_spelled(key, each)}" for key, each in options.items())
    return value


def _spelled(key: str, value: Any) -> str:
    """Return an option's value as text, in parentheses if it could be read as several options."""
    words = registry.spell(value)
    if key in registry.PATTERNS:  # parentheses around a pattern must not become a capturing group
        return f"(?:{words})" if "," in words else words
    return f"({words})" if set(words) & set(",:") and words[:1] != "(" else words


Plain = str | int | float | bool
Words = Annotated[list[str], BeforeValidator(_one, json_schema_input_type=str | list[str])]
JudgeWords = Annotated[str, BeforeValidator(_judge, json_schema_input_type=str | dict[str, dict[str, Plain]])]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


def _field(option: Option) -> Any:
    """A key of the run file, built from the declaration of its option."""
    return Field(
        default=option.default, ge=option.least, gt=option.above, le=option.most, description=option.help
    )


class DataPart(_Part):
    """The data to judge: a named set, a stored set or a file, the samples to take, and the column mapping."""

    source: str = Field(min_length=1, description="A named set, a stored one (NAME or NAME@2) or a file.")
    view: str | None = _field(options.VIEW)
    map: dict[str, str] = _field(options.MAP)
    labels: dict[str, str] = _field(options.LABELS)
    max_unread: float = _field(options.UNREAD)
    limit: int | None = _field(options.LIMIT)
    sample: int | None = _field(options.SAMPLE)
    balance: str | None = _field(options.BALANCE)
    seed: int = _field(options.SEED)
    digest: str | None = Field(
        default=None, description="The sha256 that the data must have, from an earlier run."
    )

    def selection(self) -> Selection:
        """The selection of samples."""
        return Selection(self.limit, self.sample, self.balance, self.seed)


class EnginePart(_Part):
    """A model, and where it runs."""

    model: str | None = _field(options.MODEL)
    base_url: str | None = _field(options.BASE_URL)
    device: str | None = _field(options.DEVICE)
    threads: int | None = _field(options.THREADS)
    timeout: float | None = _field(options.TIMEOUT)
    price: str | None = _field(options.PRICE)


class LimitsPart(_Part):
    """How much at once, and how much in all."""

    concurrency: int = _field(options.CONCURRENT)
    deadline: float = _field(options.TIME_FOR_VERDICT)
    give_up_after: int = _field(options.GIVE_UP)
    max_calls: int | None = _field(options.CALLS)
    max_tokens: int | None = _field(options.TOKENS)
    max_seconds: float | None = _field(options.SECONDS)
    max_cost: float | None = _field(options.COST)
    max_failures: float = _field(options.FAILURES)

    def limits(self) -> Limits:
        """The limits as `stream` takes them."""
        return Limits(**self.model_dump(exclude={"max_failures"}))


class RunSpec(_Part):
    """The specification of a run: its data, judges, engines, limits and gates."""

    dataset: Annotated[
        DataPart, BeforeValidator(partial(_under, "source"), json_schema_input_type=str | DataPart)
    ] = Field(description="The data to judge.")
    judges: Annotated[
        list[JudgeWords],
        BeforeValidator(_one, json_schema_input_type=str | list[str | dict[str, dict[str, Plain]]]),
    ] = Field(default=[registry.DEFAULT_JUDGE], min_length=1, description=options.JUDGES.help)
    engines: dict[
        str,
        Annotated[
            EnginePart, BeforeValidator(partial(_under, "model"), json_schema_input_type=str | EnginePart)
        ],
    ] = Field(
        default={}, description=f"Models by name; {DEFAULT!r} is used by judges without a model of their own."
    )
    limits: LimitsPart = Field(default=LimitsPart(), description="Limits of concurrency, time and cost.")
    gates: Words = _field(options.GATES)
    name: str | None = _field(options.NAME)
    tags: Words = _field(options.TAGS)
    cache: bool = _field(options.CACHE)
    workers: int | None = _field(options.WORKERS)
    shard: str | None = _field(options.SHARD)

    @property
    def engine(self) -> EnginePart:
        """The engine of judges that name none."""
        return self.engines.get(DEFAULT, EnginePart())

    def plain(self) -> dict[str, Any]:
        """The values that differ from the defaults. `RunSpec.model_validate` reads them."""
        return {"judges": self.judges, **self.model_dump(exclude_defaults=True)}

    def yaml(self) -> str:
        """The specification as the text of a run file."""
        return dump_document(self.plain())


def read_spec(path: Path) -> tuple[RunSpec, list[Judge]]:
    """Read a run file. Returns its specification with absolute paths, and its judges, created to check them.

    Raises `SpecError` with the file, the line, the key and the nearest known word for an invalid value.
    """
    document = read_document(path)
    spec = anchored(document.read_as(RunSpec), path.absolute().parent)
    return spec, _checked_judges(document, spec)


def spec_from(values: Mapping[str, Any]) -> RunSpec:
    """Return the specification in plain values. Raises `SpecError` that names the invalid key."""
    return Document("this run", values, {}).read_as(RunSpec)


def anchored(spec: RunSpec, folder: Path) -> RunSpec:
    """Return the specification with absolute paths, which do not depend on the working directory."""
    source = spec.dataset.source
    if _is_path(folder, source):
        source = _within(folder, source)
    engines = {
        name: part.model_copy(update={"model": _model(folder, part.model)})
        for name, part in spec.engines.items()
    }
    return spec.model_copy(
        update={
            "dataset": spec.dataset.model_copy(update={"source": source}),
            "judges": [_judge_path(folder, judge) for judge in spec.judges],
            "engines": engines,
        }
    )


def judges_of(spec: RunSpec) -> list[Judge]:
    """Create the judges of a specification. Judges that name the same engine share it."""
    engines = _others(spec)
    return [registry.judge(words, engines) for words in spec.judges]


def same_judges(a: RunSpec, b: RunSpec) -> bool:
    """Return whether two specifications have the same judges, including the engines that these may name."""
    return a.judges == b.judges and _engines_named(a) == _engines_named(b)


def judge_of(spec: RunSpec, words: str) -> Judge:
    """Create one judge of a specification from its text."""
    return registry.judge(words, _others(spec))


def _others(spec: RunSpec) -> dict[str, Callable[[], Engine]]:
    """Factories of the engines other than the default one. Each engine is created once, on first use."""
    parts, concurrency = _engines_named(spec)
    return {name: cache(partial(engine_of, part, concurrency=concurrency)) for name, part in parts.items()}


def _engines_named(spec: RunSpec) -> tuple[dict[str, EnginePart], int]:
    """The engines that judges may name, and how many concurrent calls each of them gets."""
    parts = {name: part for name, part in spec.engines.items() if name != DEFAULT}
    return parts, spec.limits.concurrency


def engine_of(part: EnginePart, *, hidden_states: bool = False, concurrency: int = CONCURRENCY) -> Engine:
    """Create the engine that a part describes, for at most `concurrency` concurrent calls.

    With `hidden_states` the engine returns hidden states.
    """
    settings = EngineSettings(
        base_url=part.base_url,
        device=part.device,
        threads=part.threads,
        timeout=part.timeout,
        hidden_states=hidden_states,
        concurrency=concurrency,
    )
    return registry.engine(part.model, settings)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a run file, for editors."""
    found = RunSpec.model_json_schema(mode="validation")
    return {"$schema": DIALECT, **found, "title": "A Magistrate run"}


# --- checks across the whole file ---------------------------------------------------------------


def _checked_judges(document: Document, spec: RunSpec) -> list[Judge]:
    """Create the judges of a file and check its values. An invalid value is reported with its line."""
    engines = _others(spec)
    asked: list[Judge] = [
        _at(document, ("judges", number), registry.judge, words, engines)
        for number, words in enumerate(spec.judges)
    ]
    names = [judge.info.name for judge in asked]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise document.error(("judges", number), f"{name!r} is given twice")
    for number, gate in enumerate(spec.gates):
        _at(document, ("gates", number), Gate.parse, gate, names)
    _at(document, ("dataset", "map"), check_mapping, spec.dataset.map)
    _at(document, ("dataset", "labels"), check_labels, spec.dataset.labels)
    _at(document, ("dataset",), spec.dataset.selection)
    for name, part in spec.engines.items():
        if part.price is not None and name != DEFAULT:
            message = f"only {DEFAULT!r} can have a price, which is used for the whole run"
            raise document.error(("engines", name, "price"), message)
        if part.price is not None:
            _at(document, ("engines", name, "price"), Price.parse, part.price)
    return asked


def _at(document: Document, key: Key, check: Any, *values: Any) -> Any:
    try:
        return check(*values)
    except SpecError as error:
        raise document.error((*key, *error.key), str(error)) from None


def _is_path(folder: Path, source: str) -> bool:
    if source == STDIN or "://" in source or source.partition(":")[0] in catalogue():
        return False
    return looks_like_path(source) or (folder / source).is_file()


def _within(folder: Path, path: str) -> str:
    """Resolve a path relative to a folder. Paths that begin with ~ or / are already absolute."""
    return str(folder / Path(path).expanduser())


def whole(words: str) -> str:
    """Return a judge's text with absolute paths, independent of the working directory."""
    return _judge_path(Path.cwd(), words)


def _judge_path(folder: Path, words: str) -> str:
    """Return a judge's text with absolute paths, also for judges in its options."""
    found = registry.FILE.fullmatch(words)
    if words.partition(":")[0].partition("@")[0] not in registry.judge_entries() and found is not None:
        return f"{_within(folder, found['path'])}{_option_paths(folder, words[found.end('path') :], None)}"
    name, colon, options = words.partition(":")
    return name + _option_paths(folder, colon + options, registry.folder_option(name))


def _option_paths(folder: Path, words: str, bare: str | None) -> str:
    """Return options with absolute paths. `bare` is the option that names a folder, if there is one."""
    if not words.startswith(":"):
        return words
    options = []
    for option in registry.split_options(words[1:]):
        key, value = registry.keyed(option, bare)
        if key == option:  # it has no value; creating the judge reports this
            options.append(option)
            continue
        inner = registry.unenclosed(value)
        if bare is not None and key in (None, bare):
            value = f"({_within(folder, inner)})"
        elif key not in registry.PATTERNS and registry.names_several(inner):
            joined = "+".join(_member_path(folder, each) for each in registry.split_words(inner))
            value = joined if inner == value else f"({joined})"
        elif registry.needs_folder(inner):
            value = f"({_judge_path(folder, inner)})"
        elif registry.CALIBRATION.fullmatch(inner):
            value = f"({_within(folder, inner)})"
        elif registry.FILE.fullmatch(inner) or inner != value:
            value = f"({_judge_path(folder, inner)})"
        options.append(f"{key}={value}" if key is not None else value)
    return ":" + ",".join(options)


def _member_path(folder: Path, words: str) -> str:
    """Return one of several judges in an option with absolute paths. Only parentheses can hold a path."""
    inner = registry.unenclosed(words)
    return words if inner == words else f"({_judge_path(folder, inner)})"


def _model(folder: Path, model: str | None) -> str | None:
    """Return the model with an absolute path if it is one. A catalogue name stays as it is."""
    if model is None:
        return None
    path = Path(_within(folder, model.removesuffix(":f16")))
    return _within(folder, model) if path.exists() else model

"""The registry of judges: turns names with options into judges and engines, and judges back into names."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path, PurePath
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from magistrate.engines.base import Engine, EngineSettings
from magistrate.engines.none import NONE
from magistrate.engines.registry import UNSAID as UNSAID
from magistrate.engines.registry import engine as engine
from magistrate.engines.registry import engine_entries as engine_entries
from magistrate.engines.registry import engine_kind as engine_kind
from magistrate.engines.registry import shorthands as shorthands
from magistrate.errors import InputError, SpecError
from magistrate.judges.base import FolderJudge, Judge, MadeOfJudges

JUDGES = "magistrate.judges"  # entry-point group of judges, including the built-in ones
NOT_OPTIONS = ("name", "cast", "criterion", "form", "mapping", "parts")  # parts of a judge, not its options
PATTERNS = ("pattern",)  # options that are regular expressions, used verbatim
DEFAULT_JUDGE = "auto"
FILE = re.compile(r"(?P<path>.+?\.ya?ml)(?:(?P<colon>:)(?P<options>.*))?", re.DOTALL)
CALIBRATION = re.compile(r".+\.json", re.DOTALL)
FOLDER = re.compile(r"[^=(),]*[/\\](?=[^=(),/\\]+\.(?:ya?ml|json)(?:[:,)]|$))")
PIECE = re.compile(r"\\[()\[\]{}]|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,\d*\}|.", re.DOTALL)  # option tokens
DEEPEST = 32  # parentheses in one another, as around judges in options of judges
ENCLOSED = re.compile(r"\(([^(),:=]+\.(?:ya?ml|json))\)")

Engines = Mapping[str, Callable[[], Engine]]
NO_ENGINES: Engines = MappingProxyType({})


@cache
def judge_entries() -> Mapping[str, EntryPoint]:
    """Return the entry points of all installed judges, by name."""
    return {entry.name: entry for entry in sorted(entry_points(group=JUDGES), key=lambda each: each.name)}


def judge(spec: str | Judge, engines: Engines = NO_ENGINES, *, outside: bool = False) -> Judge:
    """Make a judge from a name or YAML file; options as in `faithfulness:permute=true,explain=after`.

    Several values of one option are joined by `+`. An option that takes a judge or a model takes its name,
    in parentheses if it has options of its own: `windows:of=(rubric:most=2),tokens=1000`, and
    `jury:members=novelty+(rubric:most=2)` for several judges. The folder of a judge needs no key, as in
    `detector:some/folder` and `detector:some/folder,threshold=.4`. A judge with options is named as
    written, without the directories of its files and folders. `rubric@1` requires that version. `engines`
    holds factories of engines that options may name, in addition to the models of the catalogue. `outside`
    marks input from an HTTP client: it may name installed judges and set harmless options, else
    `OptionPolicyError` is raised. Raises `SpecError` for unknown names, unknown options and values of the
    wrong type.
    """
    if not isinstance(spec, str):
        if isinstance(spec, type) or not hasattr(spec, "judge") or not hasattr(spec, "info"):
            raise SpecError(f"a judge must be a name or an object such as Hallucination(), got {spec!r}")
        return spec
    name, colon, options = spec.partition(":")
    name, _, version = name.partition("@")
    if name not in judge_entries():
        if outside:
            raise SpecError(unknown("judge", name, list(judge_entries())))
        if file := FILE.fullmatch(spec):
            name, colon, options = file.group("path", "colon", "options")
            return _set(_from_file(name), name, spec, options if colon else None, engines, outside)
    found = _set(_installed(name), name, spec, options if colon else None, engines, outside)
    if version and version != str(found.info.version):
        raise SpecError(f"version {version!r} of {name!r} is not installed; installed: {found.info.version}")
    return found


def _set(known: Any, name: str, spec: str, options: str | None, engines: Engines, outside: bool) -> Judge:
    """Return the named judge with the options written in `spec`."""
    if options is None:
        return known if not isinstance(known, type) else _build(known, name, {"name": name}, engines, outside)
    bare = _folder_option(known)
    words = [_option(spec, word, bare) for word in split_options(options)]
    given = dict(words)
    if len(given) < len(words):
        raise SpecError(f"an option is set twice in {spec!r}")
    shown = known.info.name if not isinstance(known, type) else name
    if outside and "name" in given:
        raise OptionPolicyError("the option 'name' of a judge cannot be set")
    named = options if outside else _named(options, bare)  # shortening a path would touch the file system
    return _build(known, shown, {"name": f"{shown}:{named}", **given}, engines, outside)


def _named(options: str, bare: str | None) -> str:
    """Return options as they are shown in a judge's name; `bare` is the option that needs no key, if any.

    Directories are left out, because a resumed run gives the file or folder as an absolute path.
    """
    told = []
    for word in split_options(options):
        key, value = keyed(word, bare)
        inner = unenclosed(value)
        if bare is not None and key in (None, bare):
            value = _enclosed(Path(os.path.normpath(Path(inner).expanduser().absolute())).name)
        elif key not in PATTERNS and names_several(inner):
            value = "+".join(_member_named(piece) for piece in split_words(inner))
        elif needs_folder(inner):
            name, _, others = inner.partition(":")
            value = f"({name}:{_named(others, folder_option(name))})"
        told.append(value if key is None else f"{key}={value}")
    return ENCLOSED.sub(r"\1", FOLDER.sub("", ",".join(told)))


def names_several(value: str) -> bool:
    """Return whether an option's value names several judges, at least one of them in parentheses."""
    pieces = split_words(value)
    bare = [each for each in pieces if unenclosed(each) == each]
    return len(bare) < len(pieces) > 1 and not any(set(each) & set(":=") for each in bare)


def _member_named(words: str) -> str:
    """Return one of several judges in an option, as it is shown in a judge's name."""
    name, colon, others = unenclosed(words).partition(":")
    if not colon or not needs_folder(unenclosed(words)):
        return words
    return f"({name}:{_named(others, folder_option(name))})"


def folder_option(name: str) -> str | None:
    """Return the option of an installed judge that holds its folder, None for a judge without a folder."""
    kind = _folder_kind(name.partition("@")[0])
    return None if kind is None else kind.FOLDER_OPTION


def _folder_kind(name: str) -> type[FolderJudge] | None:
    """Return the class of an installed judge, if it is a `FolderJudge` and can be imported."""
    entry = judge_entries().get(name)
    try:
        known = None if entry is None else entry.load()
    except Exception:  # any error of a package's code; raised when the judge is made
        return None
    return known if isinstance(known, type) and issubclass(known, FolderJudge) else None


def _folder_option(known: Any) -> str | None:
    """Return the option that holds the folder of a judge, or of a class of judges; None if there is none."""
    kind = known if isinstance(known, type) else type(known)
    return kind.FOLDER_OPTION if issubclass(kind, FolderJudge) else None


def needs_folder(words: str) -> bool:
    """Return whether a judge with options, or one in its options, is loaded from a folder."""
    name, colon, options = words.partition(":")
    if not colon or name.partition("@")[0] not in judge_entries():
        return False
    if folder_option(name) is not None:
        return True
    values = [unenclosed(keyed(word, None)[1]) for word in split_options(options)]
    judges = [each for value in values for each in (split_words(value) if names_several(value) else [value])]
    return any(needs_folder(unenclosed(each)) for each in judges)


def keyed(word: str, bare: str | None) -> tuple[str | None, str]:
    """Split an option into key and value. The key is None for the value of `bare`, which can stand alone.

    >>> keyed("threshold=.4", "folder"), keyed("runs/lr=1", "folder"), keyed("(lr=1)", "folder")
    (('threshold', '.4'), (None, 'runs/lr=1'), (None, '(lr=1)'))
    """
    key, equals, value = word.partition("=")
    if bare is not None and not (equals and key.strip().isidentifier()):
        return None, word.strip()
    return key, value


def unenclosed(value: str) -> str:
    """Return a value without the parentheses around all of it.

    >>> unenclosed("(rubric:most=2)"), unenclosed("(a)+(b)")
    ('rubric:most=2', '(a)+(b)')
    """
    if value[:1] + value[-1:] != "()":
        return value
    depth, pieces = 0, PIECE.findall(value)
    for piece in pieces[:-1]:
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if depth == 0:  # the first parenthesis closes before the end
            return value
    return value[1:-1] if depth == 1 and pieces[-1] == ")" else value


def _from_file(path: str) -> Any:
    from magistrate.judges.definitions import judge_from_file

    return judge_from_file(Path(path))


def _installed(name: str) -> Any:
    """Return the object of an entry point: a class of judges, or a judge."""
    known = judge_entries()
    if name not in known:
        file = Path(f"{name}.yaml")
        hint = f"; there is a file: use {file.name}" if file.name == str(file) and file.is_file() else ""
        if fitting := kinds_of(Path(name).expanduser()):
            hint = f"; there is a folder: use {' or '.join(f'{kind}:{name}' for kind in fitting)}"
        raise SpecError(unknown("judge", name, list(known)) + hint)
    try:
        return known[name].load()
    except Exception as error:  # any error of a package's code
        raise SpecError(f"judge {name!r} ({known[name].value}) cannot be loaded: {error}") from error


def split_options(text: str) -> list[str]:
    """Split options at commas, except in parentheses and in sets or counts of a pattern.

    >>> split_options("of=(rubric:most=2,order=quotes_first),tokens=1000")
    ['of=(rubric:most=2,order=quotes_first)', 'tokens=1000']
    >>> split_options(r"pattern=\\d{1,3}[),]\\(,whole=true")
    ['pattern=\\\\d{1,3}[),]\\\\(', 'whole=true']
    """
    return _split(text, ",")


def split_words(text: str) -> list[str]:
    """Split the values of one option at plus signs, except in parentheses.

    >>> split_words("novelty+(rubric:flag=contradiction+unsupported)")
    ['novelty', '(rubric:flag=contradiction+unsupported)']
    """
    return _split(text, "+")


def _split(text: str, at: str) -> list[str]:
    found, depth = [""], 0
    for piece in PIECE.findall(text):
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if depth > DEEPEST:
            start = text if len(text) <= 60 else f"{text[:60]}…"
            raise SpecError(f"parentheses are nested more than {DEEPEST} deep in {start!r}")
        if piece == at and depth == 0:
            found.append("")
        else:
            found[-1] += piece
    if depth:
        raise SpecError(f"unbalanced parentheses in {text!r}")
    return found


def judges(specs: str | Judge | Sequence[str | Judge]) -> list[Judge]:
    """Make one judge or several, from names or objects."""
    several = specs if isinstance(specs, Sequence) and not isinstance(specs, str) else [specs]
    return [judge(spec) for spec in several]


def calibrated(
    words: Sequence[str], files: Sequence[Path], make: Callable[[str], Judge] = judge
) -> list[str]:
    """Wrap each judge that a calibration file was made for, as `calibrated:of=(WORDS),file=FILE`.

    Raises `SpecError` if a file was made for none of the judges, or several files for the same one.
    """
    if not files:
        return list(words)
    from magistrate.judges.calibrated import words_of
    from magistrate.judges.calibration_file import read_calibration

    asked, made = [words_of(make(each)) for each in words], list(words)
    for file in files:
        wanted = read_calibration(file).judge.words
        if wanted not in asked:
            raise SpecError(
                f"{file} was made for the judge {wanted}, but the judges are: {', '.join(asked)}. Choose "
                "that judge: --judge"
            )
        at = asked.index(wanted)
        if made[at] != words[at]:
            raise SpecError(f"two calibrations are for the same judge, {wanted}; give only one")
        made[at] = f"calibrated:of={_enclosed(words[at])},file={_enclosed(str(file))}"
    return made


def _enclosed(value: str) -> str:
    """Return an option's value, in parentheses if it could be read as several options."""
    return f"({value})" if set(value) & set(",:=") else value


MOST_LISTED = 12  # known names that an error lists beside the nearest ones


def unknown(kind: str, name: str, known: Sequence[str], *, of: str = "", see: str = "judges") -> str:
    """Return an error message for an unknown name, with the nearest known ones; `of` names its owner."""
    near = difflib.get_close_matches(name, known, n=3)
    meant = f" (did you mean {' or '.join(repr(each) for each in near)}?)" if near else ""
    if near and len(known) > MOST_LISTED:
        return f"unknown {kind} {name!r}{of}{meant}; see 'magistrate {see}'"
    listed = ", ".join(known) or "none"
    return f"unknown {kind} {name!r}{of}{meant}; known: {listed}; see 'magistrate {see}'"


def _option(spec: str, word: str, bare: str | None) -> tuple[str, str]:
    if bare is not None and (found := keyed(word, bare))[0] is None:
        return bare, found[1]
    key, equals, value = word.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"write options of a judge as NAME:key=value,key=value; got {spec!r}")
    return key.strip(), value.strip()


def _build(kind: Any, name: str, options: Mapping[str, Any], engines: Engines, outside: bool) -> Judge:
    """Make an instance of a class of judges, or a copy of a judge with changed options."""
    fields = {field.name: field for field in settable(kind)} if dataclasses.is_dataclass(kind) else {}
    for option in options:
        if option not in fields and option != "name":
            raise SpecError(unknown("option", option, list(fields), of=f" of judge {name!r}"))
    hints = get_type_hints(kind if isinstance(kind, type) else type(kind))
    values = {
        option: _value(name, option, hints[option], given, engines, outside)
        for option, given in options.items()
    }
    bare = _folder_option(kind)
    if bare is not None and isinstance(folder := values.get(bare), Path):
        values[bare] = _folder(kind, name, folder)
    if not isinstance(kind, type):
        made: Judge = dataclasses.replace(kind, **values)
        return made
    missing = [name for name, field in fields.items() if default(field) is dataclasses.MISSING]
    if unset := [each for each in missing if each not in values]:
        raise SpecError(f"judge {name!r} needs the option {unset[0]!r}: {name}:{unset[0]}=…")
    built: Judge = kind(**values)
    if isinstance(built, MadeOfJudges):
        built = built.with_parts(lambda words: judge(words, engines))
    return built


def _value(name: str, option: str, hint: Any, given: Any, engines: Engines, outside: bool) -> Any:
    """Convert an option's value to the type of its field."""
    from pydantic import TypeAdapter, ValidationError

    if outside and option != "name":
        check_option(name, option, hint)
    kinds = get_args(hint) or (hint,)
    if isinstance(given, str):
        if option not in PATTERNS:  # parentheses of a pattern belong to it
            given = unenclosed(given)
        if Judge in kinds and get_origin(hint) is tuple:
            return tuple(
                judge(unenclosed(each), engines, outside=outside) for each in split_words(given) if each
            )
        if Judge in kinds:
            return judge(given, engines, outside=outside)
        if Engine in kinds:
            return engines[given]() if given in engines else engine(given)
        if get_origin(hint) in (frozenset, tuple):
            given = given.split("+")
    try:
        value = TypeAdapter(hint).validate_python(given)
    except ValidationError as error:
        raise SpecError(
            f"judge {name!r}, option {option!r}: {error.errors()[0]['msg']}; got {given!r}"
        ) from None
    if outside:
        check_amount(name, option, value)
    return value


# --- the engine for judges ----------------------------------------------------------------------


def engine_for(
    judges: Sequence[Judge],
    model: str | Path | Engine | None = None,
    settings: EngineSettings = UNSAID,
) -> Engine:
    """Return the engine for these judges, as `engine` makes it, or `NONE` if none of them needs one.

    For judges of code no engine is looked up, loaded or imported, even if a model is named. If no model is
    named and a judge has one tuned for it, that model is used.
    """
    if asks_none(judges):
        return NONE
    if model is None:
        model = tuned_for(judges)
    return engine(model, dataclasses.replace(settings, hidden_states=read_states(judges)))


def usual_model(judges: Sequence[Judge]) -> str:
    """Return the name of the model that these judges ask if none is named.

    Raises `SpecError` if two judges need different ones.
    """
    from magistrate.engines.models import default

    return tuned_for(judges) or default().name


def tuned_for(judges: Sequence[Judge]) -> str | None:
    """Return the model that was tuned for one of these judges; None for the default model.

    Judges that no model was tuned for use it too. Raises `SpecError` if two judges need different ones.
    """
    wanted = {each.info.name: each.info.models - {""} for each in judges if each.info.asks}
    models = frozenset[str]().union(*wanted.values())
    if len(models) > 1:
        listed = "; ".join(f"{name}: {' and '.join(sorted(of))}" for name, of in wanted.items() if of)
        raise SpecError(
            f"these judges need different models ({listed}). Run them separately, or choose one model for "
            "all: --model NAME"
        )
    return next(iter(models), None)


def warn_unasked(judges: Sequence[Judge], model: object) -> None:
    """Warn if a model was named but all judges run on code without it."""
    if model not in (None, NONE) and asks_none(judges):
        names = ", ".join(judge.info.name for judge in judges)
        told = f"{names} needs no model; to use the model, choose a judge that asks one"
        warnings.warn(f"{told}, such as judge='faithfulness'", UserWarning, stacklevel=2)


def read_states(judges: Sequence[Judge]) -> bool:
    """Return whether one of the judges needs an engine that exposes its hidden states."""
    return any("hidden_states" in judge.info.needs for judge in judges)


def asks_none(judges: Sequence[Judge]) -> bool:
    """Return whether no engine is needed, because all judges run on code."""
    return bool(judges) and not any(judge.info.asks for judge in judges)


# --- judges loaded from a folder ----------------------------------------------------------------


def _folder(kind: type[FolderJudge] | FolderJudge, name: str, folder: Path) -> Path:
    """Return the absolute path of a judge's folder. Raises `SpecError` if it is not one of this judge."""
    name = name.partition(":")[0]
    path = folder.expanduser().absolute()
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        raise SpecError(f"judge {name!r} needs a folder, but {path} {found}; use {name}:FOLDER")
    wanted = kind.FOLDER_FILE
    if wanted is not None and not (path / wanted).is_file():
        others = [f"{other}:{folder}" for other in kinds_of(path)]
        hint = f"; use {' or '.join(others)}" if others else ""
        raise SpecError(f"{path} is not the folder of a {name}: it has no {wanted}{hint}")
    return path


def kinds_of(folder: Path) -> list[str]:
    """Return the installed judges that a folder could belong to, by the file that identifies each."""
    if not folder.is_dir():
        return []
    kinds = {name: _folder_kind(name) for name in judge_entries()}
    return [
        name
        for name, kind in kinds.items()
        if kind is not None and kind.FOLDER_FILE is not None and (folder / kind.FOLDER_FILE).is_file()
    ]


# --- judges as text -------------------------------------------------------------------------------


def spelled(judge: Judge) -> str:
    """Return a judge's name with every option that differs from its default."""
    name = judge.info.name.partition(":")[0]
    if not dataclasses.is_dataclass(judge):
        return name
    options = [
        f"{field.name}={spell(value)}"
        for field in settable(judge)
        if (value := getattr(judge, field.name)) != default(field)
    ]
    return f"{name}:{','.join(options)}" if options else name


def settable(judge: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a judge that are options."""
    return [field for field in dataclasses.fields(judge) if field.name not in NOT_OPTIONS]


def default(field: dataclasses.Field[Any]) -> Any:
    """Return an option's default; MISSING if it must be set."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def spell(value: Any) -> str:
    """Return an option's value as text."""
    if hasattr(value, "judge") and hasattr(value, "info"):
        name, colon, options = spelled(value).partition(":")
        pinned = f"{name}@{value.info.version}{colon}{options}"
        return f"({pinned})" if colon else pinned
    if hasattr(value, "generate") and hasattr(value, "info"):
        return f"{value.info.model}#{value.info.fingerprint[:12]}"
    if isinstance(value, PurePath):
        return value.name  # directories differ between machines; the content has a digest
    if isinstance(value, frozenset | tuple):
        return "+".join(map(spell, sorted(value) if isinstance(value, frozenset) else value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- what an HTTP client may set: no option that could name a file, a folder or a model ------------

HARMLESS = (bool, int, float, NoneType, Judge)
TEXTS = ("flag", "kinds", "language", "negative", "pattern", "personas", "positive", "unit", "without")
"""Options that are words or patterns and are never opened; those of other names may be files."""

LARGEST = 10_000
"""The largest whole number that may be set, because some options are numbers of model calls."""


class OptionPolicyError(InputError):
    """A client set an option that only people at this machine may set."""


def check_option(judge: str, option: str, hint: Any) -> None:
    """Raise `OptionPolicyError` for an option that could name a file, folder or model of this machine."""
    for kind in _kinds(hint):
        if kind not in HARMLESS and not (kind is str and option in TEXTS):
            raise OptionPolicyError(
                f"option {option!r} of judge {judge!r} cannot be set remotely, because it could name a file, "
                "a folder or a model on this machine; set it on the command line or in a run file"
            )


def check_amount(judge: str, option: str, value: Any) -> None:
    """Raise `OptionPolicyError` for an integer that is too large."""
    if isinstance(value, int) and abs(value) > LARGEST:
        raise OptionPolicyError(
            f"option {option!r} of judge {judge!r} can be set remotely to at most {LARGEST:,}"
        )


def _kinds(hint: Any) -> Iterator[Any]:
    """Yield the types that an option's values consist of; literals have none."""
    origin = get_origin(hint)
    if origin in (Union, UnionType, tuple, frozenset):
        for each in get_args(hint):
            if each is not Ellipsis:
                yield from _kinds(each)
    elif origin is not Literal:
        yield hint

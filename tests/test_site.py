"""The site of the documentation: pages have their places, the reference is complete, the built site whole."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import magistrate
from browsing import NARROW, WIDE, Reader, a_browser, fits
from docs.site import __main__ as site
from docs.site import built, pages, pictures, reference
from magistrate._version import __version__
from magistrate.cli import docs
from magistrate.runs import spec
from magistrate.store import schema as tables
from magistrate.watch import rules
from terminal import Call


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """Every page of the site, written or generated."""
    return site.all_pages()


def test_every_page_stands_in_one_section(found: dict[str, str]) -> None:
    by_section = pages.sections(found)
    assert list(by_section) == ["Tutorial", "Guides", "Reference", "Explanation"]
    top = [name for names in by_section.values() for name in names]
    nested = [child for name in top for child in pages.below(name, found)]
    assert sorted([*top, *nested, "index.md"]) == sorted(found)
    linked = pages.with_navigation(found)
    for name in top:
        assert f"\n{name}\n" in linked["index.md"]
    assert "\nopenai.md\n" not in linked["index.md"]
    assert "\nengines/openai.md\n" in linked["engines.md"]


def test_pages_of_folders_need_no_line_and_all_others_do() -> None:
    lines = {"Guides": ["guides/*.md", "data.md"]}
    texts = dict.fromkeys(["index.md", "data.md", "guides/b.md", "guides/a.md", "guides/a/more.md"], "# It")
    assert pages.sections(texts, lines) == {"Guides": ["guides/a.md", "guides/b.md", "data.md"]}
    for changed, said in (
        ({**texts, "lost.md": "# It"}, "names lost.md; add one to a section"),
        ({"index.md": "# It"}, "pages that do not exist: data.md"),
    ):
        with pytest.raises(pages.SiteError, match=said):
            pages.sections(changed, lines)


def test_links_lead_from_the_staged_pages_where_they_led(tmp_path: Path) -> None:
    texts = {
        "engines/a.md": "",
        "design.md": "",
        "index.md": "[a](engines/) [d](design/) [x](https://a.example/b)",
    }
    texts["engines/a.md"] = "[i](../index.md#it) [m](../../Makefile) [here](#a) `table[name](argument)`"
    texts["engines.md"] = ""
    linked = pages.with_links(texts, tmp_path)
    assert linked["index.md"] == "[a](engines.md) [d](design.md) [x](https://a.example/b)"
    found = re.findall(r"\]\(([^)]*)\)", linked["engines/a.md"])
    assert (found[0], *found[2:]) == ("../index.md#it", "#a", "argument")
    assert (tmp_path / "engines" / found[1]).resolve() == pages.ROOT / "Makefile"


def test_the_reference_names_everything(found: dict[str, str]) -> None:
    for name in magistrate.__all__:
        assert f"magistrate.{name}" in found["reference/python.md"], name
    for module, names in reference.promised(pages.written()).items():
        for name in names:
            shown = found["reference/python-modules.md"]
            assert f"{module}.{name}\n" in shown or f"`magistrate.{name}`" in shown
    assert "magistrate.testing.assert_faithful" in found["reference/python-modules.md"]
    assert "magistrate.judges.registry.judge" in found["reference/python-modules.md"]
    for page, schema in (("run-file", spec.schema()), ("rules-file", rules.schema())):
        for part in (schema, *schema["$defs"].values()):
            for key in part["properties"]:
                assert re.search(rf"^\| \[?`{key}`", found[f"reference/{page}.md"], re.MULTILINE), (page, key)
    document = reference.openapi()
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"\n## {method.upper()} {path}\n" in found["reference/http-api.md"]
    for name in document["components"]["schemas"]:
        assert f"\n### {name}\n" in found["reference/http-api.md"]
    for name, table in tables.metadata.tables.items():
        section = found["reference/store-tables.md"].partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert all(f"| `{column.name}` |" in section for column in table.columns), name
    assert "one row per pair is not superseded" in found["reference/store-tables.md"], (
        "the comments of the schema"
    )


def test_a_key_says_what_it_takes_and_leads_to_its_own_keys(found: dict[str, str]) -> None:
    page = found["reference/rules-file.md"]
    assert "\n## rules[].judges[]\n" in page
    assert (
        "| [`judges`](#rulesjudges) | list of text or mapping | required | The judges, the cheap one first. |"
        in page
    )
    assert "| `rate` | number > 0, ≤ 1 | `1.0` | The share, in (0, 1]. |" in page
    assert "| `order` | `oldest` or `newest` | `oldest` | The order of judging. |" in page


def test_every_picture_is_asked_for_and_an_unknown_one_is_an_error() -> None:
    assert pictures.asked(pages.written()) == set(pictures.PICTURES)
    with pytest.raises(pictures.PictureError, match=r"no picture is named sunset; known: demo, "):
        pictures.asked({"a.md": "# A\n\n<!-- picture: sunset -->\n"})
    text = "A.\n\n<!-- picture: demo -->\n\nB.\n<!-- picture: page-run -->\n"
    assert pictures.placed(text, {"demo": "drawn"}) == "A.\n\ndrawn\n\nB.\n\n"


def test_pictures_that_cannot_be_made_are_an_error_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "stage", lambda folder: "Chromium does not start")
    done = CliRunner().invoke(site.command, ["--strict", "--to", str(tmp_path / "site")])
    assert done.exit_code == 1
    assert done.output == "Error: pictures of pages cannot be made: Chromium does not start\n"
    assert list(tmp_path.iterdir()) == []


def test_what_is_broken_in_a_built_site_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="top">A</h1><a href="#top">a</a><a href="b.html#b">b</a>')
    (tmp_path / "b.html").write_text('<p id="b"></p><a href="https://a.example/">out</a><img src="p.png">')
    (tmp_path / "p.png").write_bytes(b"")
    assert built.problems(tmp_path) == []
    (tmp_path / "c.html").write_text(
        '<a href="b.html#c">1</a><a href="d.html">2</a><script src="https://a.example/x.js"></script>'
        '<img src="q.png">'
    )
    (tmp_path / "c.css").write_text(
        "@import '//a.example/f.css'; p { background: url(data:image/png;base64,AA) }"
    )
    assert built.problems(tmp_path) == [
        "c.html loads https://a.example/x.js",
        "c.html links b.html#c",
        "c.html links d.html",
        "c.html links q.png",
        "c.css loads //a.example/f.css",
    ]


def test_the_command_opens_what_is_built_or_says_how_to_build_it(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs, "PACKAGE", tmp_path / "src" / "magistrate")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)) or len(opened) > 1)
    done = call("docs")
    assert (done.code, done.out) == (2, "")
    assert f"in a checkout of Magistrate {__version__}, 'make docs' builds it" in done.err
    for folder in (tmp_path / "build" / "site" / __version__, tmp_path / "src" / "magistrate" / "site"):
        folder.mkdir(parents=True)
        (folder / "index.html").write_text("built")
        assert docs.first_page() == folder / "index.html"
        done = call("docs")
        assert (done.code, done.out.strip()) == (0, str(folder / "index.html"))
        assert ("no browser found" in done.err) == (len(opened) == 1)
        assert opened[-1] == (folder / "index.html").as_uri()
    assert call("docs", "--path").out.strip() == str(folder / "index.html")
    assert len(opened) == 2


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_the_whole_site_is_built_and_can_be_read_without_a_network(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "docs.site", "--strict", "--to", str(tmp_path / "site")],
        cwd=pages.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    latest = tmp_path / "site" / "latest"
    for page in latest.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert f"Magistrate {__version__}" in text, page
        assert (tmp_path / "site" / __version__ / page.relative_to(latest)).read_text(
            encoding="utf-8"
        ) == text
    assert (latest / "_images" / "page-run-dark.png").stat().st_size > 10_000
    with a_browser() as browser:
        for scheme, width in (("light", WIDE), ("dark", NARROW)):
            context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
            reader = Reader(context, (latest / "index.html").as_uri())
            for name in ("index", "commands", "page", "reference/python", "reference/http-api"):
                reader.page.goto((latest / f"{name}.html").as_uri())
                assert fits(reader.page), (name, width)
            assert reader.said == []
            reader.page.goto((latest / "search.html").as_uri() + "?q=samples_needed")
            reader.page.get_by_role("link", name="magistrate.samples_needed").first.wait_for()
            assert {each for each in reader.asked if not each.startswith(("file:", "data:"))} == set()
            context.close()


@pytest.mark.full
def test_a_wheel_carries_the_site_where_it_is_built(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "src/magistrate/_version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(pages.ROOT / name, tmp_path / name)
    page = tmp_path / "build" / "site" / __version__ / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("built")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", tmp_path, tmp_path], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "unpacked", "zip")
    assert (tmp_path / "unpacked" / "magistrate" / "site" / "index.html").read_text() == "built"

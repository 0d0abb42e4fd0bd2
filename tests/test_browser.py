"""A report in a real browser: it asks nobody, does what it offers, and nothing in it comes to life."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from browsing import HOSTILE, PAYLOADS, Reader, contrast, luminance
from magistrate.types import Claim, Failure, Outcome, Sample, Span, Turn, Verdict
from reported import CLAIMS, CONTEXT, OUTPUT, outcomes_of, samples_of, stored

pytestmark = pytest.mark.full  # test_pages_smoke.py goes once round in every `make test`

PAINTED = """(name) => {
    const probe = document.querySelector("h1");
    return (probe.attributeStyleMap.set("color", `var(${name})`), getComputedStyle(probe).color);
}"""
SHOWN = "li.row:not([hidden])"

Open = Callable[..., Reader]


@pytest.fixture
def read(browser: Browser) -> Iterator[Open]:
    """Open a file, offline; at the end the page has asked for nothing else and has said nothing."""
    contexts: list[BrowserContext] = []
    readers: list[tuple[Reader, Path]] = []

    def opened(path: Path, **options: object) -> Reader:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_offline(True)
        contexts.append(context)
        readers.append((Reader(context, path.as_uri()), path))
        return readers[-1][0]

    yield opened
    found = [(reader.asked, reader.said, path) for reader, path in readers]
    for context in contexts:
        context.close()
    for asked, said, path in found:
        assert asked == [path.as_uri()]
        assert said == []


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty samples by two judges, with claims, spans, conversations, failures and abstentions."""
    folder = tmp_path_factory.mktemp("report")
    samples = samples_of(40)
    outcomes = [*outcomes_of(samples), *outcomes_of(samples, "second")]
    stored(folder, samples, outcomes, judges=("rubric", "second")).export(folder / "report.html")
    return folder / "report.html"


def ids(page: Page) -> list[str]:
    return [str(row.get_attribute("data-id")) for row in page.locator(SHOWN).all()]


def wait_for(page: Page, n: int) -> None:
    expect(page.locator(SHOWN)).to_have_count(n)


# --- what it offers ----------------------------------------------------------------------------------


def test_lines_are_filtered_by_what_is_said_of_them(report: Path, read: Open) -> None:
    page = read(report).page
    assert page.locator("#count").inner_text() == "80 of 80 shown"
    page.select_option("[name=judge]", "second")
    wait_for(page, 40)
    for choice, value, n in (
        ("judged", "failed", 4),
        ("judged", "abstained", 4),
        (
            "judged",
            "hallucinated",
            page.locator("li.row[data-judge=second][data-judged=hallucinated]").count(),
        ),
        ("right", "wrong", page.locator("li.row[data-judge=second][data-right=wrong]").count()),
        ("gold", "faithful", 20),
    ):
        assert 0 < n < 40
        page.select_option(f"[name={choice}]", value)
        wait_for(page, n)
        page.select_option(f"[name={choice}]", "")
        wait_for(page, 40)
    page.fill("[name=least]", "0.5")
    page.fill("[name=most]", "0.9")
    between = page.locator("li.row[data-judge=second]").evaluate_all(
        "rows => rows.filter(r => r.dataset.score >= 0.5 && r.dataset.score <= 0.9).length"
    )
    wait_for(page, between)
    page.click("text=Show all")
    wait_for(page, 80)
    page.fill("[name=words]", "Bridge-007 TIMEOUT")
    wait_for(page, 2)
    assert ids(page) == ["bridge-007"] * 2
    page.fill("[name=words]", "no such words")
    wait_for(page, 0)
    assert page.locator("#none").is_visible()


def test_a_long_list_is_filtered_at_once(tmp_path: Path, read: Open) -> None:
    """A browser that numbered the lines anew for each one that is hidden took many seconds over so many."""
    samples = samples_of(2000)
    stored(tmp_path, samples, outcomes_of(samples)).export(tmp_path / "long.html")
    page = read(tmp_path / "long.html").page
    taken = page.evaluate(
        """async () => {
            const words = document.querySelector("[name=words]"), begin = performance.now();
            words.value = "bridge-1234";
            words.dispatchEvent(new Event("input", { bubbles: true }));
            await new Promise((next) => setTimeout(next, 125));
            await new Promise((next) => requestAnimationFrame(() => setTimeout(next)));
            return performance.now() - begin;
        }"""
    )
    assert ids(page) == ["bridge-1234"]
    assert taken < 2000, f"{taken:.0f} ms"


def test_lines_are_sorted_and_come_back_to_their_order(report: Path, read: Open) -> None:
    page = read(report).page
    before = ids(page)
    scores = "rows => rows.map(r => r.dataset.score === undefined ? null : Number(r.dataset.score))"
    for way in (True, False):
        page.click("#heads [data-sort=score]")
        found = page.locator("li.row").evaluate_all(scores)
        known = [score for score in found if score is not None]
        assert known == sorted(known, reverse=way)
        assert found[: len(known)] == known, "what has no score comes last, both ways"
    page.click("#heads [data-sort=score]")
    assert ids(page) == before
    page.click("#heads [data-sort=id]")
    assert ids(page) == sorted(before)
    assert page.locator("#heads [data-sort=id]").get_attribute("aria-pressed") == "true"


def test_a_line_opens_to_both_quotes_where_they_stand(report: Path, read: Open) -> None:
    reader = read(report)
    page = reader.page
    row = page.locator("li.row[data-judge=rubric][data-judged=hallucinated]").first
    row.locator("summary").first.click()
    assert row.locator(".evidence").is_visible()
    sides = {"output": row.locator(".output"), "context": row.locator(".sources")}
    for number, claim in enumerate(CLAIMS, 1):
        for side, words in (("output", claim.output_text), ("context", claim.context_text)):
            marks = sides[side].locator(f'mark[data-claims~="{number}"]')
            assert "".join(marks.all_text_contents()) == (words or "")
            for mark in marks.all():
                assert claim.kind in str(mark.get_attribute("class")).split()
                assert f"claim {number}: {claim.kind}" in str(mark.get_attribute("title"))
    looks = {
        kind: row.locator(f".output mark.{kind}").first.evaluate(
            "m => { const s = getComputedStyle(m); return [s.backgroundColor, s.textDecorationStyle].join() }"
        )
        for kind in ("agreement", "contradiction", "unsupported")
    }
    assert len({look.rsplit(",", 1)[1] for look in looks.values()}) == 3, "told apart without colour"
    assert len(set(looks.values())) == 3
    gold = page.locator("li.row[data-gold=hallucinated] .output").first.locator("mark.gold")
    assert "".join(gold.all_text_contents()) == "four lanes of traffic. It"
    reader.shot("open")


def test_it_is_used_by_keyboard(report: Path, read: Open) -> None:
    page = read(report).page
    page.locator("li.row summary").nth(0).focus()
    page.keyboard.press("Enter")
    assert page.locator("li.row details").first.evaluate("d => d.open")
    page.keyboard.press("Space")
    assert not page.locator("li.row details").first.evaluate("d => d.open")
    page.locator("#heads [data-sort=score]").focus()
    page.keyboard.press("Enter")
    assert page.locator("#heads [data-sort=score]").get_attribute("data-way") == "down"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_and_can_be_read_in_light_and_dark(report: Path, read: Open, scheme: str, width: int) -> None:
    reader = read(report, color_scheme=scheme, viewport={"width": width, "height": 900})
    page = reader.page
    page.locator("li.row[data-judged=hallucinated] summary").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    back, ink = page.evaluate(
        "() => { const s = getComputedStyle(document.documentElement); return [s.backgroundColor, s.color] }"
    )
    assert (luminance(back) > 0.8) == (scheme == "light")
    assert contrast(back, ink) > 12
    faint = page.locator("figcaption").first.evaluate("e => getComputedStyle(e).color")
    assert contrast(back, faint) > 4.5
    line = page.locator(".chart .stroke-accent").first.evaluate("e => getComputedStyle(e).stroke")
    assert contrast(back, line) > 3
    reader.shot(f"{scheme}-{width}")


def test_all_of_it_can_be_read_without_javascript(report: Path, read: Open) -> None:
    reader = read(report, java_script_enabled=False)
    page = reader.page
    assert not page.locator("#filter").is_visible(), "what does nothing is not shown"
    assert page.locator("li.row").count() == 80
    page.locator("li.row[data-judged=hallucinated] summary").first.click()
    assert page.locator("li.row .evidence").locator("visible=true").count() == 1
    assert page.locator(".figures").first.is_visible() and page.locator(".chart svg").first.is_visible()


def test_it_prints_without_the_controls(report: Path, read: Open) -> None:
    reader = read(report, color_scheme="dark")
    reader.page.emulate_media(media="print")
    for name in ("--paper", "--agreement-tint", "--contradiction-tint", "--unsupported-tint"):
        colour = reader.page.evaluate(PAINTED, name)
        assert luminance(colour) > 0.7, f"{name}: paper is white, whatever the screen is"
    assert not reader.page.locator("#filter").is_visible()
    assert reader.page.locator("h1").is_visible()
    assert reader.page.pdf()[:5] == b"%PDF-"


# --- what stands in it does nothing -------------------------------------------------------------------


def hostile_run(folder: Path) -> Path:
    samples, outcomes = list[Sample](), list[Outcome]()
    for number, text in enumerate(HOSTILE):
        sample = Sample(
            f"{number} {text[:200]}",
            f"{text} {OUTPUT}",
            (text, *CONTEXT),
            input=text,
            expected=text,
            label=text[:40] if number % 3 == 0 else "hallucinated",
            spans=(Span(0, len(text), text[:60]),),
            messages=(Turn(text[:60], text),),
            metadata={text: text},
        )
        samples.append(sample)
        quoted = Claim("contradiction", Span(0, len(text)), Span(0, len(text)), 0, text, 0.5, text, text)
        if number % 5 == 4:
            outcomes.append(Failure(sample.id, "rubric", "engine_error", text))
        else:
            label = text[:40] if number % 4 == 0 else "hallucinated"
            heat = {"name": text, "unit": text, "low": 0, "high": 1, "pieces": [[0, len(text), 0.9]]}
            noted = {"x": text, "heat": heat}
            outcomes.append(
                Verdict(sample.id, "rubric", label, 0.5, 0.5, text, claims=(quoted,), details=noted)
            )
    every = "".join(PAYLOADS[:20])
    judged = [replace(outcome, judge=every) for outcome in outcomes]
    run = stored(folder, samples, judged, name=every, dataset=every, judges=[every])
    run.export(folder / "hostile.html")
    return folder / "hostile.html"


@pytest.mark.parametrize("scripts", [True, False])
def test_hostile_texts_stay_texts(tmp_path: Path, read: Open, scripts: bool) -> None:
    reader = read(hostile_run(tmp_path), java_script_enabled=scripts)
    page = reader.page
    assert len(HOSTILE) > 60
    for name in ("iframe", "img", "object", "embed", "base", "link", "a[href^=javascript]", "textarea"):
        assert page.locator(name).count() == 0, name
    counts = {name: page.locator(name).count() for name in ("script", "style", "title", "form", "li.row")}
    assert counts == {"script": 1, "style": 1, "title": 1, "form": 1, "li.row": len(HOSTILE)}
    assert page.locator("meta[http-equiv]").count() == 1
    if not scripts:
        return
    handlers = "() => [...document.querySelectorAll('*')].flatMap(e => [...e.attributes]).map(a => a.name)"
    names = set(page.evaluate(handlers))
    assert not [name for name in names if name.startswith("on") or name in ("style", "srcdoc", "autofocus")]
    page.fill("[name=words]", "<script>alert(1)")
    expect(page.locator(SHOWN)).not_to_have_count(len(HOSTILE))
    page.evaluate("() => document.querySelectorAll('details').forEach(d => { d.open = true })")
    first = page.locator("li.row .output .text").first.text_content()
    assert first == f"{HOSTILE[0]} {OUTPUT}"
    whole = page.locator("body").text_content() or ""
    assert not {"\u202e", "\u2066", "\x1b", "\x00", "\u2028"} & set(whole)
    reader.shot("hostile")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_of_a_heat_map_can_be_read_on_every_ground(tmp_path: Path, read: Open, scheme: str) -> None:
    sample = replace(samples_of(1)[0], output="a b c d e", spans=())
    pieces = [[2 * at, 2 * at + 1, float(at + 1)] for at in range(5)]
    heat = {"name": "doubt", "unit": "nats", "low": 0.0, "high": 5.0, "pieces": pieces}
    verdict = Verdict(sample.id, "likelihood", "hallucinated", 0.7, details={"heat": heat})
    stored(tmp_path, [sample], [verdict], judges=("likelihood",)).export(tmp_path / "heat.html")
    page = read(tmp_path / "heat.html", color_scheme=scheme).page
    page.locator("li.row summary").first.click()
    ink, paper = page.evaluate(PAINTED, "--ink"), channels(page.evaluate(PAINTED, "--paper"))
    look = "e => getComputedStyle(e).backgroundColor"
    shades = []
    for ground in (channels(each.evaluate(look)) for each in page.locator("mark.heat").all()):
        share = ground[3]
        mixed = [
            round(over * share + under * (1 - share)) for over, under in zip(ground, paper, strict=False)
        ]
        shades.append(f"rgb({mixed[0]}, {mixed[1]}, {mixed[2]})")
    assert len(set(shades)) == 5, "no two levels look alike"
    assert min(contrast(ink, shade) for shade in shades) >= 4.5


def channels(colour: str) -> list[float]:
    """Red, green, blue in 0 to 255, and opacity where it is said."""
    return [float(each) for each in colour[colour.index("(") + 1 : -1].split(",")]


def test_a_script_that_got_in_would_not_run(report: Path, browser: Browser, tmp_path: Path) -> None:
    """The policy alone stops what escaping would have missed."""
    text = report.read_text(encoding="utf-8")
    inside = "<script>document.title = 'ran'</script><img src=x onerror=\"document.title = 'ran'\">"
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace("<main>", f"<main>{inside}", 1), encoding="utf-8")
    context = browser.new_context()
    reader = Reader(context, broken.as_uri())
    reader.page.wait_for_timeout(100)
    assert reader.page.title() == "Bridges"
    assert len([said for said in reader.said if "Content Security Policy" in said]) >= 2
    assert reader.page.locator("#count").inner_text() == "80 of 80 shown", "and its own script does"
    context.close()

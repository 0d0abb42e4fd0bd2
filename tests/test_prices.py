"""What tokens cost: the list, the names that it knows, and a price that somebody names."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magistrate.engines.models import entries
from magistrate.engines.prices import Price, price_of
from magistrate.errors import SpecError
from magistrate.types import Usage

LISTED = tomllib.loads(files("magistrate.engines").joinpath("prices.toml").read_text(encoding="utf-8"))


def test_every_listed_price_is_dated_sourced_and_plausible() -> None:
    assert LISTED.keys() == {"openai", "anthropic"}
    for provider in LISTED.values():
        assert re.fullmatch(r"20\d\d-\d\d", provider["as_of"])
        assert provider["source"].startswith("https://")
        for name, price in provider["models"].items():
            assert 0 < price["input"] < price["output"] < 100, name
            assert 0 < price.get("cached", price["input"] / 2) <= price["input"] / 2, name


def test_a_model_is_known_by_its_name_its_provider_and_its_date() -> None:
    mini = price_of("gpt-4o-mini")
    assert mini == Price(0.15, 0.60, 0.075, LISTED["openai"]["as_of"])
    for name in ("openai:gpt-4o-mini", "gpt-4o-mini-2024-07-18", "openai:gpt-4o-mini-2024-07-18"):
        assert price_of(name) == mini
    assert price_of("gpt-4o-2024-05-13") != price_of("gpt-4o") == price_of("gpt-4o-2024-11-20")
    sonnet = price_of("claude-sonnet-4-5")
    assert (
        sonnet == price_of("claude-sonnet-4-5-20250929") == price_of("anthropic:claude-sonnet-4-5@20250929")
    )
    assert price_of("claude-3-7-sonnet-latest") == price_of("claude-3-7-sonnet")


@pytest.mark.parametrize(
    "name",
    [
        *("", "gpt", "gpt-4o-mini-audio", "gpt-4o-2024", "ft:gpt-4o-mini:me", "anthropic:gpt-4o"),
        *("azure:gpt-4o", "/models/gpt-4o", "latest", "-latest"),
    ],
)
def test_another_model_has_no_price(name: str) -> None:
    assert price_of(name) is None


def test_no_model_of_this_machine_has_a_price() -> None:
    assert [entry.name for entry in entries() if price_of(entry.name) is not None] == []


@given(st.text())
def test_no_name_is_an_error(name: str) -> None:
    assert price_of(name) is None or name


def test_a_price_is_written_in_dollars_per_million_tokens() -> None:
    assert Price.parse("0.15/0.60") == Price(0.15, 0.6)
    assert Price.parse("2/8/.5") == Price(2, 8, 0.5)
    assert str(Price.parse("2/8/.5")) == "$2 in, $8 out, $0.5 cached per million tokens"
    assert str(Price(1, 2, as_of="2026-03")).endswith("per million tokens (as of 2026-03)")


@pytest.mark.parametrize("text", ["", "1", "1/2/3/4", "a/b", "1/", "1,5/2", "$1/$2"])
def test_what_is_no_price_is_said(text: str) -> None:
    with pytest.raises(SpecError, match=r"write a price as IN/OUT or IN/OUT/CACHED.*got"):
        Price.parse(text)


@pytest.mark.parametrize("text", ["-1/2", "nan/1", "1/inf", "1/2/-3"])
def test_a_price_is_an_amount(text: str) -> None:
    with pytest.raises(SpecError, match="must be finite and not negative"):
        Price.parse(text)


def test_what_was_used_costs() -> None:
    price = Price(2.0, 10.0, 0.5)
    million = 1_000_000
    assert price.cost(Usage()) == price.cost(Usage(reused=9)) == 0
    assert price.cost(Usage(prompt=million)) == 2.0
    assert price.cost(Usage(prompt=million, cached=million)) == 0.5
    assert price.cost(Usage(prompt=million, cached=9 * million)) == 0.5
    assert price.cost(Usage(generated=million, forced=million)) == 10.0
    assert price.cost(Usage(calls=3, prompt=million, cached=million // 2, generated=1000)) == pytest.approx(
        1.26
    )
    assert Price(2.0, 10.0).cost(Usage(prompt=million, cached=million)) == 2.0

"""Split texts into words; stems, stop words, and language detection by stop words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, compress, count, pairwise
from operator import add, sub
from types import MappingProxyType
from typing import Any

from magistrate._work import check, checked, once
from magistrate.types import Sample, Span

UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
"""Scripts that are written without spaces, as the inside of a set."""

SPACED = rf"[\p{{L}}--[{UNSPACED}]]"
"""A letter of any other script."""

PART = rf"[[\p{{L}}\p{{N}}]--[{UNSPACED}]]"
"""A letter of any other script, or a digit: what a number or a word cannot be cut from."""

NEGATORS = frozenset(("not", "never", "no", "cannot", "without", "nor", "neither", "none"))
_CONTRACTED = "aren can couldn didn doesn don hadn hasn haven isn mustn shouldn wasn weren won wouldn"
CONTRACTED = frozenset(_CONTRACTED.split())
NEGATIVE = NEGATORS | {"t"}
DENIED = 3  # words after a negation of which the first with content is denied

Run = tuple[int, int]
"""A run of words by their numbers: the first, and one behind the last."""


def compiled(pattern: str) -> Any:
    """Compile a pattern with `regex`, which is imported on first use. Callers cache the result."""
    import regex  # type: ignore[import-untyped]

    return regex.compile(pattern)


_WORDS = {
    "en": """
        a about above after again all also although am among an and another any are aren around as
        at be because been before being below between both but by can cannot could couldn did didn
        do does doesn doing don down during each either else ever every few for from further get
        gets getting go goes going got had hadn has hasn have haven having he her here hers herself
        him himself his how however i if in into is isn it its itself just ll m me might mine more
        most much must my myself neither nor not now of off on once only onto or other others ought
        our ours ourselves out over own re s same shall she should shouldn since so some such t than
        that the their theirs them themselves then there these they this those though through thus
        to too under until up upon us ve very was wasn we well were weren what when where whether
        which while who whom whose why will with within without won would wouldn yes yet you your
        yours yourself yourselves""",
    "de": """
        aber als am an auch auf aus bei bin bis bist da dann das dass dem den der des die dies diese
        diesem diesen dieser dieses doch dort du durch ein eine einem einen einer eines er es für
        gegen hat hatte hatten ich ihm ihn ihr ihre im in ist ja kann kein keine können man mehr mit
        nach nicht noch nur ob oder ohne sehr sein seine seinen seiner sich sie sind so über um und
        uns unter vom von vor war waren was wenn werden wie wird wir wo wurde wurden zu zum zur""",
    "fr": """
        à au aux avec c ce ces cet cette d dans de des du elle elles en est et eu il ils j je l la
        le les leur leurs lui m ma mais mes même n ne ni nos notre nous on ont ou où par pas plus
        pour qu que qui s sa sans se ses si son sont sur ta te tes toi ton tu un une vos votre vous
        y été était étaient être""",
    "es": """
        a al como con de del desde donde e el ella ellas ellos en entre era eran es esa ese eso esta
        este esto están está fue fueron ha han hasta hay la las le les lo los más me mi muy ni no
        nos o para pero por porque que quien se sea ser si sin sobre son su sus también te tu un una
        uno unos y ya yo""",
    "it": """
        a ad ai al alla alle anche che chi ci come con da dai dal dalla de degli dei del della delle
        di e ed è era erano fu gli ha hanno i il in io l la le lo loro ma mi ne nei nel nella no noi
        non o per perché più quale quella quello questa questo se sei si sia sono su sua sue sul suo
        tra tu un una uno vi""",
    "pt": """
        a ao aos as com como da das de do dos e é ela elas ele eles em entre era eram essa esse esta
        este foi foram há isso isto já lhe mais mas me na nas não nem no nos o os ou para pela pelo
        por porque que quem se sem ser seu seus sua suas são também te tem um uma você""",
    "nl": """
        aan al als bij dan dat de der deze die dit door een en er had hadden heeft hem het hij hoe
        hun ik in is je kan maar me meer met mijn naar niet nog nu of om onder ook op over te tot
        uit van veel voor was wat we werd werden wie wij ze zich zij zijn zo zou""",
}

STOP: Mapping[str, frozenset[str]] = MappingProxyType(
    {language: frozenset(words.split()) for language, words in _WORDS.items()}
)
COMMON: Mapping[str, Sequence[str]] = {
    word: [language for language, words in STOP.items() if word in words]
    for word in frozenset().union(*STOP.values())
}
"""The languages of each stop word."""

UNSPACED_NAMES = ("CJK ", "HIRAGANA ", "KATAKANA ", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ")
"""The same scripts as `UNSPACED`, by how the Unicode names of their characters begin."""

ASCII = [chr(code).lower() if chr(code).isalnum() else " " for code in range(128)]
"""For `str.translate` of an ASCII text: its words in lower case, with spaces in place of all else."""

ALPHANUMERIC = re.compile(r"([^\W_]+)")
UNUSUAL = re.compile(
    r"[^\0-\u02ff\u0370-\u0482\u048a-\u0557\u1e00-\u208e\u20a0-\u20cf\u2100-\u2bff\U0001f201-\U0001faff]"
)
"""A character that Latin, Greek and Cyrillic texts rarely have.

In a text without any, `ALPHANUMERIC` finds the words that `_pattern` finds, several times faster.
"""

SPACE = re.compile(r"\s")
STRETCH = 1 << 16  # characters that are split together, if there is white space between two stretches
MOST_KEPT = 1 << 16  # words whose forms or stems are kept
SHORTEST_STEM = 3  # letters that must remain before an ending
ENDINGS = ("ing", "ed", "es", "s", "ly", "e")


class _WordCharacters(dict[int, str]):
    """A table for `str.translate` that keeps letters, digits and marks; filled on demand."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if unicodedata.category(character)[0] not in "LNM":
            kept = " "
        elif unicodedata.name(character, "").startswith(UNSPACED_NAMES):
            kept = f" {character} "
        else:
            kept = character
        self[code] = kept
        return kept


_TABLE = _WordCharacters()


def words(text: str) -> list[str]:
    """Return the words of `text` in any script, without case, width or punctuation.

    >>> words("L'été, 25 °C: 東京!")
    ['l', 'été', '25', 'c', '東', '京']
    """
    return unicodedata.normalize("NFKC", text).casefold().translate(_TABLE).split()


def word_runs(words: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    """Return all runs of `size` words, in order; none if there are fewer words."""
    return zip(*(words[start:] for start in range(size)), strict=False)


@dataclass(frozen=True)
class Wording:
    """The words of `text` in order: `forms` without case and width, from `starts` to before `ends`.

    In scripts without spaces each character is a word. `language` selects the stop words, which carry no
    content; None if there is no list.
    """

    text: str
    forms: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    language: str | None = None

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The words as they are in the text."""
        return tuple([self.text[start:end] for start, end in zip(self.starts, self.ends, strict=True)])

    @cached_property
    def stems(self) -> tuple[str, ...]:
        """The words without endings; in scripts without spaces, pairs of characters (the last is empty)."""
        found = list(map(_STEMS.__getitem__, checked(self.forms)))
        if self.text.isascii():
            return tuple(found)
        others = [at for at, form in enumerate(self.forms) if not form.isascii()]
        for at, following in checked(pairwise(others)):
            if following == at + 1 and self.ends[at] == self.starts[following]:
                found[at] += self.forms[following]
                if following == len(found) - 1:
                    found[-1] = ""  # the last character is in the pair before it
        return tuple(found)

    @property
    def common(self) -> frozenset[str]:
        """The stop words of its language."""
        return STOP.get(self.language or "", frozenset())

    @cached_property
    def content(self) -> tuple[int, ...]:
        """The indices of the content words: neither stop words nor single letters."""
        return tuple(self._content_in(0, len(self.forms)))

    def _content_in(self, first: int, last: int) -> list[int]:
        common = self.common
        return [
            number
            for number, form, stem in zip(count(first), self.forms[first:last], self.stems[first:last])
            if stem and form not in common and (len(stem) > 1 or not form.isascii() or form.isdigit())
        ]

    @cached_property
    def negated(self) -> frozenset[int]:
        """The indices of the content words that a word just before them denies: "not refundable"; English."""
        if self.language not in (None, "en") or NEGATIVE.isdisjoint(self.forms):
            return frozenset()
        found: set[int] = set()
        for at in compress(count(), map(NEGATIVE.__contains__, self.forms)):
            if self.forms[at] != "t" or (at and self.forms[at - 1] in CONTRACTED):
                for number in self._content_in(at + 1, at + 1 + DENIED)[:1]:
                    if all(map(self._follows, range(at + 1, number + 1))):
                        found.add(number)
        return frozenset(found)

    def _follows(self, number: int) -> bool:
        """Return whether only white space is between a word and the one before it."""
        return self.text[self.ends[number - 1] : self.starts[number]].isspace()

    @cached_property
    def content_stems(self) -> tuple[str, ...]:
        """The stems of `content`."""
        return tuple(map(self.stems.__getitem__, self.content))

    @cached_property
    def commonest(self) -> tuple[int, ...]:
        """How many of the words are stop words of each language in `STOP`."""
        found = dict.fromkeys(STOP, 0)
        for word, n in Counter(filter(COMMON.__contains__, self.forms)).items():
            for language in COMMON[word]:
                found[language] += n
        return tuple(found.values())

    def spoken(self, language: str | None) -> Wording:
        """Return the same words with this language set."""
        return Wording(self.text, self.forms, self.starts, self.ends, language)

    def span(self, first: int, last: int) -> Span:
        """Return the span from word `first` to word `last`, both included."""
        return Span(self.starts[first], self.ends[last])


def worded(text: str) -> Wording:
    """Split `text` into words.

    >>> worded("L'été, 25 °C: 東京!").forms
    ('l', 'été', '25', 'c', '東', '京')
    """
    forms: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    pattern = None if text.isascii() else _pattern() if UNUSUAL.search(text) else ALPHANUMERIC
    for start, end in _stretches(text):
        check()
        if pattern is None:
            pieces = text[start:end].translate(ASCII).split(" ")  # words, or nothing between two spaces
            said = list(filter(None, pieces))
            behind = compress(map(add, accumulate(map(len, pieces)), count(start)), pieces)
            forms += said
            ends += behind
            starts += map(sub, ends[len(starts) :], map(len, said))
        else:
            pieces = pattern.split(text[start:end])  # what is between the words, and at odd places the words
            forms += map(_FORMS.__getitem__, pieces[1::2])
            places = list(accumulate(map(len, pieces), initial=start))
            starts += places[1:-1:2]
            ends += places[2::2]
    return Wording(text, tuple(forms), tuple(starts), tuple(ends))


def _stretches(text: str) -> Iterator[tuple[int, int]]:
    """Yield the parts of a text that are split one after the other; no word is in two of them."""
    start = 0
    while start < len(text):
        end = len(text)
        if end - start > STRETCH and (space := SPACE.search(text, start + STRETCH)):
            end = space.end()
        yield start, end
        start = end


def form(word: str) -> str:
    """Return a word without case and width."""
    return word.lower() if word.isascii() else unicodedata.normalize("NFKC", word).casefold()


def stem(form: str) -> str:
    """Return a word without English endings of number, tense and manner, a light stemmer (Harman 1991).

    Words of other languages lose the same endings everywhere, so they remain comparable.
    """
    if len(form) <= SHORTEST_STEM or not form.isalpha():
        return form
    if form.endswith("ies") and len(form) > SHORTEST_STEM + 1:
        return form[:-3] + "y"
    for ending in ENDINGS:
        if form.endswith(ending) and len(form) - len(ending) >= SHORTEST_STEM:
            if ending == "s" and (form.endswith(("ss", "us", "is"))):
                return form
            cut = form[: -len(ending)]
            if ending in ("ing", "ed") and len(cut) > SHORTEST_STEM and cut[-1] == cut[-2]:
                cut = cut[:-1]
            return cut
    return form


class _Results(dict[str, str]):
    """What a function returns for the words it was asked about; forgets all of it when it is much.

    For many words at once, in half the time of `functools.lru_cache`, which keeps their order.
    """

    def __init__(self, function: Callable[[str], str]) -> None:
        self._function = function

    def __missing__(self, word: str) -> str:
        if len(self) >= MOST_KEPT:
            self.clear()
        self[word] = found = self._function(word)
        return found


_FORMS, _STEMS = _Results(form), _Results(stem)


@cache
def _pattern() -> Any:
    return compiled(rf"(?V1)([{UNSPACED}]\p{{M}}*|(?:{PART}|[\p{{M}}--[{UNSPACED}]])+)")


def language_of(texts: Sequence[Wording]) -> str | None:
    """Return the language (ISO 639) with the most stop words in `texts`; None if there are none."""
    counts = [sum(several) for several in zip(*(text.commonest for text in texts), strict=True)]
    most = max(counts, default=0)
    return list(STOP)[counts.index(most)] if most else None


# --- whether a text is the English prose that the shipped detector reads ----------------------------

LONGEST = 20_000  # characters read of a text
LEAST_LETTERS = 12
ANOTHER = 0.5  # at most this share of Latin letters means another script
MARKED = 0.04  # above this share of letters with marks, a text without English words is not English
LEAST_FORMS = 10  # words
LEAST_WORDS = 4  # different common words of another language, at least
TIMES = 2.0  # ratio of these to English common words, at least
NAMES = {"de": "German", "fr": "French", "es": "Spanish", "it": "Italian", "pt": "Portuguese", "nl": "Dutch"}
LATIN = re.compile(r"[A-Za-z\u00aa-\u024f\u1e00-\u1eff\ufb00-\ufb06]")
LETTER = re.compile(r"[^\W\d_]")
FENCED = re.compile(r"^```[^\n]*\n.*?^```", re.M | re.S)
CODE_LINE = re.compile(
    r"^\s*(?:def \w+\(|class \w+[(:]|import \w|from \w[\w.]* import|#include\b|(?:const|let|var) \w+ =)"
    r"|^\s*(?:return\b.*;|SELECT .* FROM\b|(?:public|private|static) \w|}|<\w[^>]*>\s*$)"
    r"|[;{]\s*$|^\s*\w[\w.]*(?:\[\w+\])? = \S"
)
LEAST_LINES = 3
SAID = re.compile(r"[^\W_]{2}|\d")  # the least that a text says: two letters together, or a digit


def strange(sample: Sample) -> str:
    """Return why a sample is not English prose, or an empty string if it is."""
    context = once(("language", sample.sources), lambda: another_language("\n".join(sample.sources)))
    if context:
        return f"it reads only English, but the context is {context}"
    output = sample.output or ""
    if found := another_language(output):
        return f"it reads only English, but the output is {found}"
    if output and not SAID.search(output):
        return "it reads words and numbers, but the output has none"
    return "it reads only prose, but the output is program code" if is_code(output) else ""


def another_language(text: str) -> str:
    """Return what a text is instead of English; empty if it is English or too short to tell.

    >>> another_language("Die Garantie gilt zwei Jahre und nicht für den Akku, wenn er in Gebrauch war.")
    'in German'
    """
    letters = LETTER.findall(text[:LONGEST])
    latin = sum(LATIN.match(each) is not None for each in letters)
    if len(letters) >= LEAST_LETTERS and latin <= ANOTHER * len(letters):
        return "in another script"
    forms = worded(text[:LONGEST]).forms
    said = {form for form in forms if len(form) > 1}  # single letters also occur in tables
    counts = {name: len(said & common) for name, common in STOP.items()}
    english = counts.pop("en")
    most = max(counts, key=lambda name: counts[name])
    if counts[most] >= max(LEAST_WORDS, TIMES * english):
        return f"in {NAMES[most]}"
    marked = sum(not each.isascii() for each in letters)
    if len(forms) >= LEAST_FORMS and not english and marked > MARKED * len(letters):
        return "not in English"
    return ""


def is_code(text: str) -> bool:
    """Return whether most of a text is program code.

    >>> is_code("It returns 3; see above."), is_code("x = 1\\nfor y in f(x):\\n    y.go();\\nreturn z;")
    (False, True)
    """
    fenced = sum(len(found[0]) for found in FENCED.finditer(text[:LONGEST]))
    if fenced > len(text[:LONGEST]) / 2:
        return True
    lines = [line for line in text[:LONGEST].splitlines() if line.strip()]
    coded = sum(CODE_LINE.search(line) is not None for line in lines)
    return len(lines) >= LEAST_LINES and coded > len(lines) / 2

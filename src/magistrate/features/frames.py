"""Find what an output says about its context or to its reader: these words need not be in the context."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain

from magistrate._work import checked

TEXTS = """
article articles call chapter context contexts contract conversation description dialogue document documents
entry excerpt extract information leaflet letter material message messages minutes note notes notice page
pages paragraph passage passages plan policy post record records report reports rules section snippet snippets
source sources statement story table text texts transcript
"""
TELL = "say mention specify state tell reveal indicate provide include contain give disclose address discuss"
TOLD = "said mentioned specified stated told revealed indicated provided included given disclosed discussed"
THINGS = "information mention indication detail details data answer hint statement"
ASKING = "whether how what who whom whose when where why which if"
CLAUSES = re.compile(  # what ends a clause; "and" only before a new subject
    r"[;:.!?\n]|,(?!\d)|\s(?:(?:but|however|although|though|yet|while|whereas)\s|and\s(?=(?:I|he|she|it|they|the)\s))",
    re.IGNORECASE,
)
SIGNS = (  # one of these is in every phrase; most texts have none
    *("according to", "based on", "based only", "based solely", "as mentioned", "as stated", "as described"),
    *("as noted", "as shown", "as explained", "says that", "states that", "mentions that", "explains that"),
    *("notes that", "indicates that", "tells us that", "in summary", "summari", "sum up", "in short"),
    *("in conclusion", "in brief", "overall,", "answer is", "answer to", "here is", "here's", "here’s"),
    *("here are", "sure!", "sure,", "sure.", "certainly", "of course", "absolutely", "good question"),
    *("great question", "thank", "help", "let me know", "feel free", "hello", "anything else"),
)
WINDOW = 4096  # characters that are searched together
LONGEST = 200  # characters of a clause that may be about the text
NEGATIVE = re.compile(r"n['’]t\b|\b(?:no|not|cannot|silent|open)\b", re.IGNORECASE)


def without_phrases(text: str) -> str:
    """Return `text` with spaces in place of phrases to its reader or about the context. Offsets stay.

    Such as "according to the text", "in summary" and "I hope this helps". Only English is read.

    >>> without_phrases("Sure! According to the text, it opens at nine.").strip()
    'it opens at nine.'
    """
    return _blanked(text, _phrases_in(text))


def without_frames(text: str) -> str:
    """Return `text` without phrases, and without clauses that say that a text does not tell something.

    >>> without_frames("It opens at nine. The text does not say when it closes.").split()
    ['It', 'opens', 'at', 'nine.', '.']
    """
    return _blanked(text, chain(_phrases_in(text), _absences(text)))


def _blanked(text: str, spans: Iterable[tuple[int, int]]) -> str:
    letters: list[str] = []
    for start, end in spans:
        letters = letters or list(text)
        letters[start:end] = " " * (end - start)
    return "".join(letters) or text


def _phrases_in(text: str) -> Iterator[tuple[int, int]]:
    for start in checked(range(0, len(text), WINDOW), 1):
        window = text[start : start + WINDOW + 100].lower()
        if any(map(window.__contains__, SIGNS)):
            for found in _phrases().finditer(text, start, start + WINDOW):
                yield found.span()


def _absences(text: str) -> Iterator[tuple[int, int]]:
    if not NEGATIVE.search(text):
        return
    start = 0
    for mark in checked(chain(CLAUSES.finditer(text), [None])):
        end = len(text) if mark is None else mark.start()
        clause = text[start : min(end, start + LONGEST + 1)]
        if len(clause) <= LONGEST and NEGATIVE.search(clause) and _absence().search(clause):
            yield start, end
        start = end if mark is None else mark.end()


def _any_of(names: str) -> str:
    return rf"(?:{'|'.join(names.split())})\b"


def _text() -> str:
    """Return a pattern of how an output names its context."""
    known = r"(?:the|this|these|that|those|your|provided|given)"
    return rf"\b{known}\s(?:\w+\s){{0,2}}?{_any_of(TEXTS)}(?:\s(?:provided|given|above)\b)?"


@cache
def _absence() -> re.Pattern[str]:
    fails = r"\s(?:does|do|did)(?:\snot|n['’]t)\s(?:\w+ly\s)?(?:any\s)?"
    told = rf"\b(?:is|are|was|were)(?:\snot|n['’]t)\s(?:\w+ly\s)?{_any_of(TOLD)}"
    has = r"\b(?:there\s(?:is|are)|contains?|provides?|gives?|includes?|has|offers?)"
    return re.compile(
        rf"""(?ix)
        {_text()}{fails}{_any_of(TELL)}
        | {_text()}\s(?:(?:is|are|keeps?|remains?)\ssilent\b | leaves?\s(?:it\s)?open\b)
        | \b(?:do|does)(?:\snot|n['’]t)\s{_any_of(TELL)}\s{_any_of(ASKING)}
        | {told}\s(?:anywhere\s)?(?:in|by)\s{_text()}
        | {has}\sno\s(?:\w+\s)?{_any_of(THINGS)}\s*(?:$|\s(?:about|on|regarding|of|as\sto|in|for|to)\b)
        | \bcannot\sbe\s(?:determined|answered|found|inferred|learned|learnt|gathered)\sfrom\s{_text()}
        | ^\s*(?:sorry\s)?I\s(?:do\snot|don['’]t)\sknow\s*$
        | \bI\s(?:do\snot|don['’]t)\shave\s(?:that|this|any|enough|the)\s(?:\w+\s)?{_any_of(THINGS)}
        | \bI\s(?:cannot|can['’]t|could\snot|couldn['’]t)\s(?:answer|find)\s(?:this|that|it|any|the)\b
        """
    )


@cache
def _phrases() -> re.Pattern[str]:
    begins = r"(?:^|(?<=[.!?:\n]))\s{0,4}"
    wish = r"\sif\syou\s(?:have|need|want)\s(?:any\s|more\s|other\s|further\s){0,3}"
    opening = r"sure|certainly|of\scourse|absolutely|(?:great|good)\squestion|hello"
    offer = r"\bI(?:['’]d|\swould|['’]ll|\swill)?\s(?:be\s(?:happy|glad)\sto|can)\shelp(?:\syou)?"
    return re.compile(
        rf"""(?ix)
        \b(?:according\sto|based\s(?:only\s|solely\s)?on)\s{_text()},?
        | \bas\s(?:mentioned|stated|described|noted|shown|explained)\s(?:in|by)\s{_text()},?
        | {_text()}\s(?:says|states|mentions|explains|notes|indicates|tells\sus)\sthat\b
        | {begins}(?:in\s(?:summary|short|conclusion|brief)|to\s(?:summari[sz]e|sum\sup)|overall),
        | \bthe\s(?:short\s|correct\s|final\s)?answer\s(?:to\s(?:your|the)\squestion\s)?is\b:?
        | {begins}here(?:['’]s|\sis|\sare)\s(?:the|a|an|your|my)\s[\w\s]{{1,40}}:
        | {begins}(?:{opening})\b[,.!:]*
        | {begins}thank(?:s|\syou)\sfor\s(?:your|the)\s(?:question|message|patience)[.!,]
        | {begins}(?:thanks|thank\syou)\sfor\sasking[.!,]
        | {offer}(?:\swith\sthat)?[.!]
        | {begins}(?:I\s)?hope\s(?:this|that|it)\shelps[.!]*
        | {begins}(?:please\s)?(?:let\sme\sknow|feel\sfree\sto\sask){wish}(?:questions?|help|information)[.!]*
        | {begins}is\sthere\sanything\selse\s(?:that\s)?I\scan\s(?:help|assist)(?:\syou)?(?:\swith)?\?
        """
    )

"""Detect the language of a prompt from its letters and most common words.

A rough test that takes microseconds. Some languages have their own script; languages in Latin and
Cyrillic letters are distinguished by frequent words. The result is "" if neither is conclusive.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

_SCRIPTS: tuple[tuple[str, str], ...] = (
    ("ja", "\u3040-\u30ff"),
    ("ko", "\uac00-\ud7af\u1100-\u11ff"),
    ("zh", "\u4e00-\u9fff"),
    ("ar", "\u0600-\u06ff"),
    ("he", "\u0590-\u05ff"),
    ("hi", "\u0900-\u097f"),
    ("th", "\u0e00-\u0e7f"),
    ("el", "\u0370-\u03ff"),
)
_WORDS: Mapping[str, str] = {
    "en": "the of and to in is that it for you with this are what how be on as can",
    "de": "der die und das ist nicht ich zu ein eine mit den auf wie für sie es auch",
    "fr": "le la les et est des une que pas pour je dans qui sur ce vous avec du",
    "es": "el los que y es una por con para las no del cómo se lo su qué más",
    "it": "il di che è per un una non sono con del della le si come gli più anche",
    "pt": "o que e do da em um uma não para com os como se mais dos é você",
    "nl": "de het een en van is dat niet ik op te zijn met voor hoe ook aan er",
    "pl": "i w nie na się jest do to że z jak co o dla czy po od ale",
    "tr": "bir ve bu için ne ile de da çok nasıl daha mi gibi olan var ben",
    "ru": "и в не на что я с как это по но он все она так его для мы",
    "uk": "і в не на що я з як це та але він для ми до від є її",
}
LANGUAGES: tuple[str, ...] = (*_WORDS, *(name for name, _ in _SCRIPTS))
"""The languages that the test distinguishes (ISO 639-1)."""

_OF_SCRIPT = tuple((name, re.compile(f"[{letters}]")) for name, letters in _SCRIPTS)
_LANGUAGES_OF: dict[str, list[str]] = {}
for _name, _words in _WORDS.items():
    for _word in _words.split():
        _LANGUAGES_OF.setdefault(_word, []).append(_name)
_WORD = re.compile(r"[^\W\d_]+")
_PREFIX_CHARS = 2_000  # characters
_LETTERS = 0.2
"""Share of the letters from which a script decides the language."""
_LEAST = 2
"""Words that a language needs to be recognised."""


def language_of(text: str) -> str:
    """The language of `text`, one of LANGUAGES, or "" if its first 2,000 characters are not
    conclusive."""
    text = text[:_PREFIX_CHARS]
    letters = sum(map(str.isalpha, text))
    for name, pattern in _OF_SCRIPT:
        # Test for Japanese before Chinese: Japanese uses Chinese characters too, but only Japanese
        # uses kana.
        found = len(pattern.findall(text))
        if found and found >= _LETTERS * letters:
            return name
    votes: Counter[str] = Counter()
    for word in _WORD.findall(text.lower()):
        for name in _LANGUAGES_OF.get(word, ()):
            votes[name] += 1
    best = votes.most_common(2)
    if not best or best[0][1] < _LEAST:
        return ""
    if len(best) > 1 and best[0][1] == best[1][1]:
        return ""
    return best[0][0]

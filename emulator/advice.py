"""The end of a sentence that refuses a word: which one may have been meant, and which there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(word: str, known: Iterable[str]) -> str:
    """A hint at the word of ``known`` that is nearest to ``word``, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def near(word: str, known: Iterable[str]) -> str:
    """The hint, and all words that there are."""
    words = list(known)
    return f"{meant(word, words)}; known are {', '.join(words)}"

"""Hints for sentences that refuse a word: the nearest known word, or all of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def question(
    word: str, known: Iterable[str], *, otherwise: str = "", likeness: float = 0.6, most: int = 1
) -> str:
    """Return a question whether a near word was meant, or ``otherwise`` where none is near.

    ``likeness`` (0 to 1) is how near a word must be (:func:`difflib.get_close_matches`); ``most``
    is how many are named.
    """
    close = difflib.get_close_matches(word, list(known), n=most, cutoff=likeness)
    return f"did you mean {' or '.join(close)}?" if close else otherwise


def meant(word: str, known: Iterable[str]) -> str:
    """Return in brackets the question whether the nearest word of ``known`` was meant, if any."""
    asked = question(word, known)
    return f" ({asked})" if asked else ""


def near(word: str, known: Iterable[str]) -> str:
    """Return the question whether the nearest word of ``known`` was meant, and a list of all."""
    words = list(known)
    return f"{meant(word, words)}; known are {', '.join(words)}"

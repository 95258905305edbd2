"""The manuals: their links lead somewhere, and the paths that they name exist."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.reference_tables import PAGES

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
#: A file or folder of the checkout, by its whole path.
PATH = re.compile(r"`((?:uet|emulator|topologies|scenarios|tests|vagrant)/[\w./-]*)`")
PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    found: Counter[str] = Counter()
    result = set()
    for heading in re.findall(r"^#+ +(.+)$", text, flags=re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        result.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return result


@PAGE
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(page.read_text()):
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


@PAGE
def test_paths_that_a_manual_names_exist(page: Path) -> None:
    named = PATH.findall(page.read_text())
    assert [path for path in named if not (CHECKOUT / path).exists()] == []

"""The manuals: their links lead somewhere, and the paths that they name exist."""

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.reference_tables import PAGES

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
#: A file or folder of the checkout, by its whole path.
_TOP = r"(?:uet|emulator|topologies|scenarios|tests|vagrant)"
PATH = re.compile(
    rf"(?<![\w./-])({_TOP}/[\w./-]*(?:\.(?:py|c|h|md|sh|svg|toml|txt|yaml)\b|/(?=[`,\s])))"
)
IMPORT = re.compile(rf"^(?: |>)*from ({_TOP}[\w.]*) import (.+?)(?: as .*)?$", re.M)
PUBLIC = (
    (CHECKOUT / "CONTRIBUTING.md")
    .read_text()
    .partition("## What is public\n")[2]
    .partition("\n## ")[0]
    .replace("\n  ", " ")
)
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


def public() -> dict[str, set[str]]:
    """Return the names that scripts of users may import, by module."""
    rows = re.findall(r"^- (`.+?`): (.+)$", PUBLIC, flags=re.M)
    return {
        module: set(re.findall(r"`(\w+)`", names))
        for modules, names in rows
        for module in re.findall(r"`([\w.]+)`", modules)
    }


@pytest.mark.parametrize("module", public())
def test_what_is_public_can_be_imported(module: str) -> None:
    loaded = importlib.import_module(module)
    for name in public()[module]:
        assert hasattr(loaded, name) or importlib.import_module(f"{module}.{name}")


def test_examples_import_what_is_public() -> None:
    examples = (*PAGES, *(CHECKOUT / "tests" / "examples").glob("*.py"))
    text = "\n".join(example.read_text() for example in examples)
    imported = [
        (module, name) for module, names in IMPORT.findall(text) for name in names.split(", ")
    ]
    assert len(imported) > 10
    found = public()
    assert [
        (module, name)
        for module, name in imported
        if module not in found or (found[module] and name != "*" and name not in found[module])
    ] == [], "add them to the list of what is public, in CONTRIBUTING.md"

"""The examples of the API's docstrings, run; and what the package may import."""

import ast
import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import uet.api
from uet.api import Endpoint


def examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for module in pkgutil.iter_modules(uet.api.__path__, "uet.api."):
        for example in finder.find(importlib.import_module(module.name)):
            if example.examples:
                yield example


EXAMPLES = list(examples())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_example_is_right(example: doctest.DocTest) -> None:
    stated: list[str] = []
    outcome = doctest.DocTestRunner().run(example, out=stated.append, clear_globs=False)
    assert not outcome.failed, "".join(stated)


def test_every_operation_has_an_example() -> None:
    shown = {example.name.rpartition(".")[2] for example in EXAMPLES}
    operations = {
        name
        for name, member in inspect.getmembers(Endpoint, inspect.isfunction)
        if not name.startswith("_") and "fi_" in (member.__doc__ or "")
    }
    about_itself = {"bind", "enable", "getname", "close"}  # in Domain's example
    assert operations - about_itself
    assert operations - about_itself <= shown


def test_the_api_reads_no_clock_and_opens_no_socket() -> None:
    folder = Path(uet.api.__path__[0])
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            roots = {name.partition(".")[0] for name in names}
            assert not roots & {"socket", "select", "time", "os", "asyncio", "emulator"}, path

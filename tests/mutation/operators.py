"""Small changes to a program, each of which a good test notices.

A mutant is one change at one place of one file: a comparison, an operator, a condition or a
constant becomes another, or a call is left out.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
#: One place where a tree can be changed: what it becomes, and the function that changes it.
Change = tuple[str, Callable[[], None]]


@dataclass(frozen=True, order=True)
class Mutant:
    """The change number ``index`` of ``path``, at ``line``; ``what`` names it for people."""

    path: Path
    index: int
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"

    def tree(self) -> ast.Module:
        """Return the program of the file with this change."""
        tree = ast.parse(self.path.read_text())
        for index, (_, _, apply) in enumerate(_changes(tree)):
            if index == self.index:
                apply()
                return ast.fix_missing_locations(tree)
        raise ValueError(f"{self.path} has no change {self.index}")


def mutants(path: Path) -> list[Mutant]:
    """Return every mutant of the file at ``path``, in the order of the text."""
    tree = ast.parse(path.read_text())
    return [Mutant(path, index, line, what) for index, (line, what, _) in enumerate(_changes(tree))]


def _changes(tree: ast.Module) -> Iterator[tuple[int, str, Callable[[], None]]]:
    for node in _code(tree):
        for what, apply in _of(node):
            yield node.lineno, what, apply  # type: ignore[attr-defined]


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs: no annotations, no docstrings, no imports."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Import | ast.ImportFrom):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            yield child
            yield from _code(child)


def _of(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            if other := _COMPARISONS.get(type(operator)):
                yield (
                    f"{type(operator).__name__} becomes {other.__name__}",
                    lambda place=place, other=other: node.ops.__setitem__(place, other()),  # type: ignore[misc]
                )
    elif isinstance(node, ast.BinOp | ast.AugAssign) and not _counts(node):
        if another := _ARITHMETIC.get(type(node.op)):
            yield (
                f"{type(node.op).__name__} becomes {another.__name__}",
                lambda: setattr(node, "op", another()),
            )
    elif isinstance(node, ast.BoolOp):
        opposite = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield (
            f"{type(node.op).__name__} becomes {opposite.__name__}",
            lambda: setattr(node, "op", opposite()),
        )
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        test = node.test
        yield (
            f"the condition {ast.unparse(test)} is negated",
            lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), copy.deepcopy(test))),
        )
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield (
            f"the call {ast.unparse(node.value)} is left out",
            lambda: setattr(node, "value", ast.Constant(None)),
        )
    elif isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool):
            yield f"{value} becomes {not value}", lambda: setattr(node, "value", not value)
        elif isinstance(value, int):
            yield f"{value} becomes {value + 1}", lambda: setattr(node, "value", value + 1)


def _counts(node: ast.BinOp | ast.AugAssign) -> bool:
    """Whether a counter is increased: what counts is said in its name, and tests need not ask."""
    return (
        isinstance(node, ast.AugAssign)
        and isinstance(node.target, ast.Subscript)
        and isinstance(node.target.slice, ast.Constant)
        and isinstance(node.target.slice.value, str)
    )

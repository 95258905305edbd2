"""What is chosen by name: one registry for each kind of thing.

A kind is congestion controls, say, or exports.  Its entries have a ``name``, a ``meaning`` in a few
words, and what makes the thing; many have ``parameters``, a dataclass whose fields are made with a
``help``.  The entries that come with uetemu register themselves when their modules are imported,
which the first look-up does.  Those of a user's file, or of an installed package, follow them
(:mod:`emulator.plugins`).
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Generic, Protocol, TypeVar

#: Names are parts of specifications such as ``uet:cc=NAME,NAME.PARAMETER=N``.
_NAME = re.compile(r"[A-Za-z]\w*(-\w+)*")


class RegistryError(ValueError):
    """An entry that cannot be registered; the sentence begins with the file and line of it."""


class Named(Protocol):
    """The form of an entry; ``parameters`` is optional."""

    @property
    def name(self) -> str: ...

    @property
    def meaning(self) -> str:
        """A few words for people."""
        ...


E = TypeVar("E", bound=Named)


class Registry(Mapping[str, E], Generic[E]):
    """The entries of one ``kind``, by name: those of ``package`` in the order of their modules.

    With ``ending`` only modules of the package whose names end in it are imported.  ``first`` is
    the default, which stands before the others.  Of the values that entries have under ``unique``
    none is that of two.
    """

    def __init__(
        self,
        kind: str,
        package: str = "",
        *,
        ending: str = "",
        first: str = "",
        unique: str = "",
    ) -> None:
        self.kind = kind
        self._package, self._ending, self._first, self._unique = package, ending, first, unique
        self._one = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
        self._entries: dict[str, E] = {}
        self._places: dict[str, str] = {}
        self._added: set[str] = set()
        self._loaded = not package

    def register(self, entry: E, level: int = 1) -> E:
        """Enter ``entry`` and return it.

        RegistryError where its name is no word or is taken, where it has no meaning, and where one
        of its parameters has no help or no default.  What calls for its caller has ``level`` 2.
        """
        caller = sys._getframe(level)  # noqa: SLF001  inspect reads the source of each frame
        file = caller.f_code.co_filename
        place = f"{file}, line {caller.f_lineno}"
        name = entry.name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RegistryError(
                f"{place}: {name!r} is no name of {self._one}; take letters, digits and _"
            )
        added = not self._comes_along(file)
        if added:
            self._load()
        if name in self._entries:
            raise RegistryError(
                f"{place}: there already is {self._one} {name!r} ({self._places[name]}); "
                "take another name"
            )
        for other, known in self._entries.items() if self._unique else ():
            if both := {*getattr(known, self._unique)} & {*getattr(entry, self._unique)}:
                raise RegistryError(
                    f"{place}: there already is {self._one} with {min(both)}, {other} "
                    f"({self._places[other]}); take another one"
                )
        if not entry.meaning or not entry.meaning.strip():
            raise RegistryError(
                f"{place}: the {self.kind} {name} has no meaning; say in a few words what it does"
            )
        kind = getattr(entry, "parameters", None)
        for item in parameter_fields(kind):
            what = f"the parameter {item.name} of the {self.kind} {name}"
            if not item.metadata.get("help"):
                raise RegistryError(
                    f'{_line_of(kind, item.name) or place}: {what} has no meaning; add help="..."'
                )
            if item.default is item.default_factory is dataclasses.MISSING:
                raise RegistryError(
                    f"{_line_of(kind, item.name) or place}: {what} has no default; give it one"
                )
        self._entries[name] = entry
        self._places[name] = place
        if added:
            self._added.add(name)
        return entry

    def remove(self, name: str) -> None:
        """Forget the entry ``name``, as a test does with its own."""
        del self._entries[name], self._places[name]
        self._added.discard(name)

    def place(self, name: str) -> str:
        """Return the file and line at which the entry ``name`` was registered."""
        self._load()
        return self._places[name]

    def added(self) -> list[E]:
        """Return the entries that did not come with uetemu."""
        self._load()
        return [entry for name, entry in self._entries.items() if name in self._added]

    def names(self, first: str = "") -> tuple[str, ...]:
        """Return all names, with ``first``, the default, before the others."""
        self._load()
        return tuple(sorted(self._entries, key=lambda name: name != (first or self._first)))

    def meanings(self) -> str:
        """Return each name with its meaning, in a line."""
        return "; ".join(f"{entry.name}: {entry.meaning}" for entry in self.values())

    def __getitem__(self, name: str) -> E:
        if name not in self._entries and not self._loaded:
            # The module of that name alone: most look-ups need no other.
            module = f"{self._package}.{str(name).replace('-', '_')}{self._ending}"
            if module in self._modules():
                import_module(module)
            if name not in self._entries:
                self._load()
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self.names() if self._first else self._entries)

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _modules(self) -> list[str]:
        path = import_module(self._package).__path__
        names = (found.name for found in iter_modules(path) if found.name.endswith(self._ending))
        return [f"{self._package}.{name}" for name in names]

    def _load(self) -> None:
        """Import the modules of the package, once; the entries take their order."""
        if self._loaded:
            return
        self._loaded = True
        for name in self._modules():
            before = set(self._entries)
            import_module(name)
            file = str(sys.modules[name].__file__)
            for key in [key for key in self._entries if key in before]:
                if self._places[key].startswith(f"{file}, line "):  # had been imported before
                    self._entries[key] = self._entries.pop(key)

    def _comes_along(self, file: str) -> bool:
        if not self._package:
            return True
        folder = Path(str(import_module(self._package).__file__)).parent
        return Path(file).parent == folder


def parameter(default: object, *, help: str, **more: object) -> Any:
    """A field of a dataclass of parameters, and what it means."""
    return dataclasses.field(default=default, metadata={"help": help, **more})


def parameter_fields(kind: type | None) -> list[dataclasses.Field[Any]]:
    return [item for item in dataclasses.fields(kind) if item.init] if kind else []


def describe_parameters(
    kind: type | None, prefix: str = "", *, without: Collection[str] = ()
) -> dict[str, str]:
    """Return what each parameter of ``kind`` means, by ``PREFIXNAME=DEFAULT``."""
    return {
        f"{prefix}{item.name}={_shown(item.default)}": item.metadata["help"]
        for item in parameter_fields(kind)
        if item.name not in without
    }


def _shown(default: object) -> str:
    if default is None:
        return "auto"
    return str(int(default)) if isinstance(default, bool) else str(default)


def _line_of(kind: type | None, field: str) -> str | None:
    """Return the file and line at which the dataclass ``kind`` declares ``field``, if known."""
    for base in kind.__mro__ if kind else ():
        if field not in vars(base).get("__annotations__", {}):
            continue
        file = getattr(sys.modules.get(base.__module__), "__file__", None)
        if file is None:
            return None
        declared = re.compile(rf"\s+{field}\s*:")
        inside = False
        for number, text in enumerate(Path(file).read_text().splitlines(), 1):
            inside = inside or text.startswith(f"class {base.__name__}")
            if inside and declared.match(text):
                return f"{file}, line {number}"
    return None

"""Registries of what users choose by name: recipes, agents, tasks, file formats, graph learners and so on."""

from __future__ import annotations

import inspect
from collections import UserDict
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from mocoda.engine.errors import InputError, unknown_name

T = TypeVar("T")


class Registry(UserDict[str, T]):
    """A list of choices by name, in the order they were added.

    Help texts and error messages are made from it, so that a choice is described in one place: its docstring.

    kind  what the choices are, in the singular, for messages: "recipe"
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def add(self, entry: T, name: str | None = None) -> T:
        """Adds a choice under its own `name`, or the given one; also a decorator."""
        name = name or str(getattr(entry, "name"))  # noqa: B009
        if name in self and self[name] is not entry:
            raise InputError(f"there is a {self.kind} {name!r} already; choose another name.")
        self[name] = entry
        return entry

    def __missing__(self, name: str) -> T:
        raise unknown_name(self.kind, name, self)

    def make(self, name: str, **settings: Any) -> Any:
        """Calls the choice `name` with these settings; refuses settings that it does not have."""
        factory = self[name]
        assert callable(factory)
        known = settings_of(factory)
        for setting in settings:
            if setting not in known:
                if not known:
                    raise InputError(f"the {self.kind} {name!r} has no settings, got {setting!r}.")
                raise unknown_name("setting", setting, known, of=f"the {self.kind} {name!r}")
        return factory(**settings)

    @property
    def choices(self) -> str:
        """The names as a sentence part: "a, b or c"."""
        *first, last = self
        return f"{', '.join(first)} or {last}" if first else last


def settings_of(factory: Callable[..., Any]) -> list[str]:
    """The names of the settings that a dataclass, or a function, takes."""
    if is_dataclass(factory):
        return [field.name for field in fields(factory) if field.init]
    return list(inspect.signature(factory).parameters)

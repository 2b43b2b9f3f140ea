"""Which arrays of a Minari data set to read, by its spaces, and how to name their columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mocoda.engine.errors import InputError

Keys = tuple[str | int, ...]  # the way down to an array: Dict keys and Tuple indices


def damaged(name: str, reason: str) -> InputError:
    return InputError(f"the Minari data set {name!r} cannot be read: {reason}. Download or record it again.")


class Leaf(NamedTuple):
    path: Keys
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        return math.prod(self.shape)


def leaves_of(name: str, what: str, space: Any, jpeg: bool, path: Keys = ()) -> list[Leaf]:
    """The Boxes of a space, from left to right."""
    space = space if isinstance(space, dict) else {}
    kind, inner, shape = space.get("type"), space.get("subspaces"), space.get("shape")
    if kind == "Dict" and isinstance(inner, dict):
        return [leaf for key in inner for leaf in leaves_of(name, what, inner[key], jpeg, (*path, key))]
    if kind == "Tuple" and isinstance(inner, list):
        return [leaf for i, part in enumerate(inner) for leaf in leaves_of(name, what, part, jpeg, (*path, i))]
    where = f"the {what} {_joined(path)!r}" if path else f"the {what}"
    if kind != "Box":
        raise InputError(
            f"{where} of the Minari data set {name!r} is {kind}; mocoda models columns of real numbers, that is Box, "
            "Dict and Tuple spaces. Make a mocoda.Transitions of its episodes, with a column for every category."
        )
    if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise InputError(f"{where} of the Minari data set {name!r} has the shape {shape!r}; expected whole numbers.")
    if jpeg and len(shape) in (2, 3) and space.get("dtype") == "uint8" and min(shape[:2]) >= 32:
        raise InputError(
            f"{where} of the Minari data set {name!r} is an image of shape {tuple(shape)}; mocoda models vectors. "
            "Encode the images, and make a mocoda.Transitions of the codes."
        )
    return [Leaf(path, tuple(shape))]


def _joined(path: Keys) -> str:
    return ".".join(f"part{key}" if isinstance(key, int) else key for key in path)


def _names(leaves: Sequence[Leaf], plain: str) -> list[str]:
    names = []
    for leaf in leaves:
        base = _joined(leaf.path)
        if base and leaf.width == 1:
            names.append(base)
        else:
            names += [f"{base}.{i}" if base else f"{plain}{i}" for i in range(leaf.width)]
    return names


def columns_of(
    state: Sequence[Leaf], achieved: Sequence[Leaf], acted: Sequence[Leaf], arrays: dict[str, NDArray[Any]]
) -> tuple[list[str], dict[str, list[str]]]:
    """The columns' names, and where the achieved goal is; it leaves the arrays if the rest of the state has it."""
    names, goals, actions = _names(state, "state"), _names(achieved, "state"), _names(acted, "action")
    found = _twins(arrays, len(names)) if names and goals else None
    if found is not None:
        for key in ("state", "next_state"):
            arrays[key] = arrays[key][:, : len(names)]
        goals, kept = [names[i] for i in found], names
    else:
        kept = names + goals
    columns = [*kept, *(f"action.{column}" if column in kept else column for column in actions)]
    return columns, {"achieved_goal": goals} if achieved else {}


def _twins(arrays: dict[str, NDArray[Any]], width: int) -> list[int] | None:
    """For every column from `width` on, one of those before it that is the same in all rows; None if one has none."""
    found = []
    for column in range(width, arrays["state"].shape[1]):
        same = np.ones(width, bool)
        for key in ("state", "next_state"):
            same &= (arrays[key][:, :width] == arrays[key][:, column : column + 1]).all(0)
        if not same.any():
            return None
        found.append(int(same.argmax()))
    return found

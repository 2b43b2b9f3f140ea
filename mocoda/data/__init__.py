"""What was recorded: the table of transitions, reading and writing it, and a first look at it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mocoda.data.formats import (
    FORMATS,
    Contents,
    Format,
    Target,
    convert,
    read,
    read_pieces,
    readable_formats,
    target_of,
    writable_formats,
    write,
)
from mocoda.data.inspection import Inspection, inspect

if TYPE_CHECKING:
    from mocoda.data.excerpt import Excerpt, read_excerpt
    from mocoda.data.transitions import Array, Transitions, as_tensor, concatenate, save_stream

__all__ = [
    "FORMATS",
    "Array",
    "Contents",
    "Excerpt",
    "Format",
    "Inspection",
    "Target",
    "Transitions",
    "as_tensor",
    "concatenate",
    "convert",
    "inspect",
    "read",
    "read_excerpt",
    "read_pieces",
    "readable_formats",
    "save_stream",
    "target_of",
    "writable_formats",
    "write",
]


def __getattr__(name: str) -> Any:
    """Tables bring torch with them, which help texts made from `FORMATS` should not wait for."""
    if name not in __all__:
        raise AttributeError(f"module 'mocoda.data' has no attribute {name!r}")
    module = "excerpt" if name in ("Excerpt", "read_excerpt") else "transitions"
    return getattr(import_module(f"mocoda.data.{module}"), name)

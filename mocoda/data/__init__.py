"""Recorded data: the table of transitions, its formats, and a first look at what is in it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mocoda.data.formats import (
    FORMATS,
    Contents,
    Format,
    Target,
    read,
    read_pieces,
    readable_formats,
    target_of,
    writable_formats,
    write,
)
from mocoda.data.formats.format import Stored
from mocoda.data.formats.shard_folder import Excerpt, read_excerpt
from mocoda.data.inspection import Inspection, inspect
from mocoda.data.kinds import column_kinds, one_hot_groups
from mocoda.data.tracking import track

if TYPE_CHECKING:
    from mocoda.data.transitions import Array, Transitions, as_tensor, concatenate

__all__ = [
    "FORMATS",
    "Array",
    "Contents",
    "Excerpt",
    "Format",
    "Inspection",
    "Stored",
    "Target",
    "Transitions",
    "as_tensor",
    "column_kinds",
    "concatenate",
    "inspect",
    "one_hot_groups",
    "read",
    "read_excerpt",
    "read_pieces",
    "readable_formats",
    "target_of",
    "track",
    "writable_formats",
    "write",
]


def __getattr__(name: str) -> Any:
    """Imports tables when they are first used: they import torch, which help texts made from `FORMATS` do not need."""
    if name not in __all__:
        raise AttributeError(f"module 'mocoda.data' has no attribute {name!r}")
    return getattr(import_module("mocoda.data.transitions"), name)

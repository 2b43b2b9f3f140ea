"""What was recorded: the table of transitions, reading and writing it, and a first look at it."""

from mocoda.data.formats import find, read, target_of, write
from mocoda.data.inspection import Inspection, inspect
from mocoda.data.transitions import Array, Transitions, as_tensor, concatenate, save_stream

__all__ = [
    "Array",
    "Inspection",
    "Transitions",
    "as_tensor",
    "concatenate",
    "find",
    "inspect",
    "read",
    "save_stream",
    "target_of",
    "write",
]

"""Recorded data: the table of transitions, its formats, and a first look at what is in it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mocoda.data.episode_scores import EpisodeScores as EpisodeScores
from mocoda.data.formats import FORMATS as FORMATS
from mocoda.data.formats import Contents as Contents
from mocoda.data.formats import Format as Format
from mocoda.data.formats import Target as Target
from mocoda.data.formats import read as read
from mocoda.data.formats import readable_formats as readable_formats
from mocoda.data.formats import target_of as target_of
from mocoda.data.formats import writable_formats as writable_formats
from mocoda.data.formats import write as write
from mocoda.data.formats.format import Stored as Stored
from mocoda.data.formats.shard_folder import Excerpt as Excerpt
from mocoda.data.formats.shard_folder import read_excerpt as read_excerpt
from mocoda.data.formats.shard_folder import read_pieces as read_pieces
from mocoda.data.inspection import Inspection as Inspection
from mocoda.data.inspection import inspect as inspect
from mocoda.data.kinds import column_kinds as column_kinds
from mocoda.data.kinds import one_hot_groups as one_hot_groups
from mocoda.data.tracking import track as track

if TYPE_CHECKING:
    from mocoda.data.transitions import Array as Array
    from mocoda.data.transitions import Transitions as Transitions
    from mocoda.data.transitions import as_tensor as as_tensor
    from mocoda.data.transitions import concatenate as concatenate


def __getattr__(name: str) -> Any:
    """Imports tables when they are first used: they import torch, which help texts made from `FORMATS` do not need."""
    if name not in ("Array", "Transitions", "as_tensor", "concatenate"):
        raise AttributeError(f"module 'mocoda.data' has no attribute {name!r}")
    return getattr(import_module("mocoda.data.transitions"), name)

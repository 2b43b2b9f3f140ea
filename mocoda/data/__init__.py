"""Recorded data: the table of transitions, its formats, and a first look at what is in it."""

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

"""learn_graph: checks the data, fixes the edges that it cannot teach, and lets a learner find the others."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from mocoda.data.formats.arrays import noted
from mocoda.data.transitions import Transitions
from mocoda.engine.checkpoint import fingerprint
from mocoda.engine.errors import InputError
from mocoda.engine.progress import Progress, silent
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.columns import ColumnNames, as_factors, column_end, guessed_factors
from mocoda.graph.learned import GraphLearner, LearnedGraph, check_caution, make_learner
from mocoda.graph.local_graph import LocalGraph

MIN_ROWS = 1_000  # fewer hold too few of the rare rows in which factors interact
UNSEEN = ("linked", "apart")
MIN_MEETINGS = 10  # rows in which two factors are near each other, for something to be learned about the pair
NEAR = 0.3  # standard deviations of the difference of two columns within which they are near each other
PLACE_COLUMNS = ("x", "y", "z")


def learn_graph(
    data: Transitions,
    state: Mapping[str, Any] | None = None,
    action: Mapping[str, Any] | None = None,
    *,
    learner: str | GraphLearner = "gates",
    seed: int | Stream = 0,
    caution: float | None = None,
    unseen: str | None = None,
    progress: Progress = silent,
) -> LearnedGraph:
    """Learns which factors depend on which, and in which rows, on the device of the data.

    state, action  factor name -> its columns, as in a graph file; without them, by the names of the columns: box.x and
                   box_x belong to box
    learner        a name, for its default settings, or a learner such as make_learner("gates", steps=4_000)
    caution        an edge is present where its probability is above this number, by default the learner's own. A
                   missing edge makes false rows, an unnecessary one only fewer, so it may be far below one half
    unseen         whether two state factors that never come near each other in the data depend on each other: "linked"
                   (in all rows; safe, and also assumed by default, with a warning) or "apart" (never; new rows are
                   false if they do)

    A factor's own past always counts among its parents.
    """
    learner, names = make_learner(learner) if isinstance(learner, str) else learner, ColumnNames.of(data)
    graph, caution = _dense_graph(state, action, names), learner.caution if caution is None else caution
    check_caution(caution)
    if unseen not in (None, *UNSEEN):
        raise InputError(f"unseen must be 'linked' or 'apart', got {unseen!r}.")
    _check_data(data, graph)
    strangers = never_met(data, graph)
    if unseen is None and bool(strangers.any()):
        warnings.warn(_unseen_warning(graph, strangers), stacklevel=2)
    always = torch.eye(len(graph.parents), len(graph.children), dtype=torch.bool, device=data.device)
    if unseen != "apart":
        always = always | strangers
    tensors = learner.learn(
        data, graph, always, strangers & ~always, as_stream(seed, "learn-graph", device=data.device), progress
    )
    learned = LearnedGraph(
        graph.state,
        graph.action,
        graph.edges,
        absent=dict.fromkeys(noted(data.source, "absent") or ()),
        learner=learner,
        tensors={name: tensor.cpu() for name, tensor in tensors.items()},
        caution=caution,
        names=names,
        row_shares=torch.ones(always.shape, dtype=torch.float64),
        settings={"unseen": unseen, "rows": len(data)},
        fingerprints={"data": fingerprint(data.rows, data.next_state)},
    )
    return learned.with_caution(caution, data.rows)


def _dense_graph(state: object, action: object, names: ColumnNames) -> LocalGraph:
    """The factors, every one of which depends on all."""
    if state is None and len(names.state) > 1 and all(re.fullmatch(r"state\d+", name) for name in names.state):
        raise InputError(
            f"the data does not name its {len(names.state)} state columns, so nothing says which of them belong to one "
            "object. Name them when the data is read (--columns cart.x cart.y ...), or list the factors: "
            'state={"cart": slice(0, 2), ...}, or a TOML file with [state] and [action] (--factors).'
        )
    factors = [
        guessed_factors(kind, getattr(names, kind)) if given is None else as_factors(kind, given, names)
        for kind, given in (("state", state), ("action", action))
    ]
    everyone = tuple(name for part in factors for name in part)
    return LocalGraph(factors[0], factors[1], dict.fromkeys(factors[0], everyone))


def _check_data(data: Transitions, graph: LocalGraph) -> None:
    if len(data) < MIN_ROWS:
        raise InputError(
            f"a graph is learned from at least {MIN_ROWS:,} rows, and far more where interactions are rare; the data "
            f"has {len(data):,}. Record more, or write the graph in a file."
        )
    still = (data.rows == data.rows[0]).all(0)
    for name, columns in graph.factors.items():
        if bool(still[list(columns)].all()):
            raise InputError(
                f"the factor {name!r} has the same value in all rows, so nothing can be learned of what depends on it. "
                "Remove its columns, or make them part of another factor."
            )


def _unseen_warning(graph: LocalGraph, strangers: Tensor) -> str:
    """One line of at most 160 characters that names the pairs."""
    pairs = ", ".join(f"{graph.parents[p]}/{graph.children[c]}" for p, c in strangers.nonzero().tolist() if p < c)
    return (
        f"never near each other in the data: {shorten(pairs, 60, placeholder=' ...')}. They count as linked; "
        "with unseen 'apart', rows are false if they interact."
    )


def never_met(data: Transitions, graph: LocalGraph) -> Tensor:
    """Pairs of state factors that are never near each other, bool (P, C).

    Factors are near each other if two of the columns that they have in common are, or the only one. Factors without
    such columns, such as a hand and a lock, are never listed.
    """
    never = torch.zeros(len(graph.parents), len(graph.children), dtype=torch.bool, device=data.device)
    for (i, one), (j, other) in combinations(enumerate(graph.children), 2):
        couples = same_kind(data.columns, graph, one, other)
        if couples:
            own, others = (list(columns) for columns in zip(*couples, strict=True))
            apart = data.state[:, own] - data.state[:, others]
            near = apart.abs() < NEAR * apart.double().std(0).clamp(min=torch.finfo(torch.float32).tiny)
            met = int((near.sum(1) >= min(2, len(couples))).sum())
            never[i, j] = never[j, i] = met < MIN_MEETINGS
    return never


def same_kind(columns: Sequence[str], graph: LocalGraph, one: str, other: str) -> list[tuple[int, int]]:
    """Pairs of columns of two factors that can be compared.

    Positions (hand.x and cup.x), or else other columns with the same name; where columns have numbers for names, those
    at the same places of factors of the same width.
    """
    ends, others = ({column_end(columns[i], name): i for i in graph.factors[name]} for name in (one, other))
    if all(re.fullmatch(r"(state)?\d+", end) for end in (*ends, *others)):
        alike = len(ends) == len(others)
        return list(zip(graph.factors[one], graph.factors[other], strict=True)) if alike else []
    shared = [end for end in ends if end in others]
    places = [end for end in shared if end in PLACE_COLUMNS]
    return [(ends[end], others[end]) for end in places or shared]

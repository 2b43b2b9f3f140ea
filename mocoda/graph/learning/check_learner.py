"""Checks a graph learner: raises an error that says which part of the contract it breaks.

mocoda.check_learner(MyLearner())
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError
from mocoda.engine.randomness import Stream
from mocoda.graph.learned import LEARNERS, GraphLearner, LearnedGraph, load_learned
from mocoda.graph.learning.learn import learn_graph

ROWS = 1_500  # of the data that it learns from
STATE, ACTION = {"a": [0, 2], "b": 1, "far": 3}, {"u": 0, "v": 1}


def check_learner(learner: GraphLearner) -> None:
    """Raises an InputError at the first part of the contract (mocoda.GraphLearner) that `learner` breaks.

    It learns from a small world three times. Give a learner that trains long small networks and few steps.
    """
    _promise(learner, isinstance(getattr(learner, "name", None), str), "it has no name, a string.")
    caution = getattr(learner, "caution", None)
    _promise(learner, isinstance(caution, float) and 0 < caution < 1, "it has no caution between 0 and 1.")
    registered = dict(LEARNERS).get(learner.name)
    _promise(learner, registered in (None, type(learner)), "its name is that of another learner.")
    data = _data()
    before = data.rows.clone(), data.next_state.clone()
    graph, again = (_learned(learner, data, seed=0) for _ in range(2))
    unchanged = data.rows.equal(before[0]) and data.next_state.equal(before[1])
    _promise(learner, unchanged, "learning changes the recorded rows.")
    _check_probabilities(learner, graph, data)
    probability = graph.edge_probability(data.rows)
    same = probability.equal(again.edge_probability(data.rows))
    _promise(learner, same, "the same seed learns another graph the second time.")
    linked = _learned(learner, data, seed=1, unseen="linked")
    _promise(learner, _kept(linked, data, 1.0), "an edge that is always present is not.")
    if registered is type(learner):
        with tempfile.TemporaryDirectory() as folder:
            graph.save(Path(folder) / "learned.graph")
            loaded = load_learned(Path(folder) / "learned.graph")
        _promise(learner, loaded.learner == learner, "a file gives it back with other settings.")
        same = probability.equal(loaded.edge_probability(data.rows))
        _promise(learner, same, "read from a file, a graph has other probabilities.")


def _learned(learner: GraphLearner, data: Transitions, *, seed: int, unseen: str = "apart") -> LearnedGraph:
    return learn_graph(data, STATE, ACTION, learner=learner, seed=seed, unseen=unseen)


def _check_probabilities(learner: GraphLearner, graph: LearnedGraph, data: Transitions) -> None:
    expected = learner.expected(graph)
    for name, tensor in graph.tensors.items():
        like = expected.get(name)
        alike = like is not None and (like.shape, like.dtype) == (tensor.shape, tensor.dtype)
        _promise(learner, alike, f"its tensor {name!r} is not as expected() says.")
    _promise(learner, expected.keys() == graph.tensors.keys(), "it learns fewer tensors than expected() says.")
    found = graph.edge_probability(data.rows)
    _promise(learner, bool(((found >= 0) & (found <= 1)).all()), "a probability is not between 0 and 1.")
    beside = graph.edge_probability(data.rows[700:801])
    _promise(learner, found[700:801].equal(beside), "a row's probabilities depend on the rows beside it.")
    _promise(learner, _kept(graph, data, 0.0), "an edge that is never present is.")
    moved = replace(graph, tensors={name: tensor.clone() for name, tensor in graph.tensors.items()})
    _promise(learner, found.equal(moved.edge_probability(data.rows)), "probabilities depend on more than the tensors.")


def _kept(graph: LearnedGraph, data: Transitions, probability: float) -> bool:
    """Whether the edges between `far` and the others have this probability, and a factor's own edge 1."""
    found = graph.edge_probability(data.rows[:100])
    between = [found[:, 2, :2], found[:, :2, 2]]
    own = found[:, :3].diagonal(dim1=1, dim2=2)
    return all(bool((part == probability).all()) for part in between) and bool((own == 1).all())


def _promise(learner: GraphLearner, kept: bool, broken: str) -> None:
    if not kept:
        raise InputError(
            f"graph learner {getattr(learner, 'name', type(learner).__name__)!r} breaks its contract: {broken}"
        )


def _data() -> Transitions:
    """Widths are unequal, so that a mix-up shows; `a` acts on `b` where it is near, and `far` is never near them."""
    stream = Stream(0, "contract-learner")
    state, action = stream.uniform(ROWS, 4, low=-1.0), stream.uniform(ROWS, 2, low=-1.0)
    state[:, 3] += 10
    next_state = state.clone()
    next_state[:, [0, 2]] += 0.1 * action[:, :1]
    next_state[:, 1] += 0.1 * action[:, 1] + torch.where(state[:, 0] > 0.7, 0.3, 0.0)
    next_state[:, 3] += 0.05 * stream.normal(ROWS)
    return Transitions(state, action, next_state, columns=("a.x", "b.x", "a.y", "far.x", "u", "v"))

"""Checks a family of dynamics models: raises an error that says which part of the contract it breaks.

mocoda.check_dynamics(MyFamily())
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.dynamics.fit import ARCHITECTURES, fit_dynamics_runs
from mocoda.dynamics.model import DYNAMICS, Dynamics, DynamicsFamily
from mocoda.engine.errors import contract
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph

ROWS = 400  # of the data that the family is fitted to
SEEN = 64  # rows to predict


def check_dynamics(family: DynamicsFamily) -> None:
    """Raises an InputError at the first part of the contract (mocoda.DynamicsFamily) that `family` breaks.

    It is fitted to a small world twice. Give a family that trains long small networks and few epochs.
    """
    promise = contract(f"dynamics {getattr(family, 'name', type(family).__name__)!r} break their")
    promise(isinstance(getattr(family, "name", None), str), "they have no name, a string.")
    registered = dict(DYNAMICS).get(family.name)
    promise(registered in (None, type(family)), "their name is that of another family.")
    promise(family.architecture in ARCHITECTURES, f"unknown architecture {family.architecture!r}.")
    data, rows = [_data(0), _data(1)], _data(2).rows[:SEEN]
    before = data[0].rows.clone(), data[0].next_state.clone()
    model, other = fit_dynamics_runs(data, GRAPH, family, seeds=[0, 1])
    (alone,) = fit_dynamics_runs(data[:1], GRAPH, family, seeds=[0])
    unchanged = data[0].rows.equal(before[0]) and data[0].next_state.equal(before[1])
    promise(unchanged, "fitting changes the recorded rows.")
    predicted, expected = model.predict(rows), (family.members, len(rows), GRAPH.state_width)
    for part, values in predicted._asdict().items():
        shape = tuple(values.shape)
        promise(shape == expected, f"the predicted {part} must be (E, N, S), here {expected}, got {shape}.")
        promise(bool(values.isfinite().all()), f"the predicted {part} has NaN or inf.")
    promise(bool((predicted.scale >= 0).all()), "a predicted standard deviation is negative.")
    alike = torch.allclose(model.predict(rows[:7]).mean, predicted.mean[:, :7], atol=1e-4)
    promise(alike, "a row's prediction depends on the rows beside it.")
    still = not family.predict_change or model.sample(rows, seed=0)[:, 3].equal(rows[:, 3])
    promise(still, "a column that never changed changes.")
    promise(_same(model, alone, rows), "fitted alone with the same seed, a model predicts otherwise.")
    promise(not _same(model, other, rows), "other data and another seed give the same predictions.")
    _check_mask(model, rows, promise)
    if registered is type(family):
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder) / "model")
            loaded = Dynamics.load(Path(folder) / "model", GRAPH)
        promise(loaded.config == family, "a file gives them back with other settings.")
        promise(_same(model, loaded, rows), "read from a file, a model predicts otherwise.")


def _check_mask(model: Dynamics, rows: Tensor, promise: Callable[[bool, str], None]) -> None:
    """A factor that is no parent of a child, by the family's architecture, does not change it by a bit."""
    local, everything = GRAPH.mask(rows), torch.ones_like(GRAPH.mask(rows))
    edges = {"local": local, "global": GRAPH.sparsest.expand_as(local), "full": everything}[model.architecture]
    before = model.predict(rows)
    for p, parent in enumerate(GRAPH.parents):
        changed = rows.clone()
        changed[:, list(GRAPH.factors[parent])] *= 1e3  # which leaves the local graph as it is
        after = model.predict(changed)
        for c, child in enumerate(GRAPH.children):
            deaf, columns = ~edges[:, p, c], list(GRAPH.factors[child])
            for one, other in zip(before, after, strict=True):
                kept = one[:, deaf][..., columns].equal(other[:, deaf][..., columns])
                promise(kept, f"{parent!r} changes the prediction of {child!r} where it is no parent of it.")


def _same(one: Dynamics, other: Dynamics, rows: Tensor) -> bool:
    alike = all(a.equal(b) for a, b in zip(one.predict(rows), other.predict(rows), strict=True))
    return alike and one.sample(rows, seed=1).equal(other.sample(rows, seed=1))


def _hits(rows: Tensor) -> Tensor:
    """`a` acts on `b` where its first column is positive."""
    mask = GRAPH.sparsest.repeat(len(rows), 1, 1).to(rows.device)
    mask[:, 0, 1] = rows[:, 0] > 0
    return mask


# Widths are unequal, so that a mix-up shows; `rest` never moves.
GRAPH = LocalGraph(
    state={"a": [0, 1], "b": 2, "rest": 3},
    action={"u": 0, "v": 1},
    edges={"a": ["a", "u"], "b": ["b", "v"], "rest": ["rest"]},
    local=_hits,
)


def _data(seed: int) -> Transitions:
    stream = Stream(seed, "contract-dynamics")
    state, action = stream.normal(ROWS, 4), stream.uniform(ROWS, 2, low=-1.0)
    next_state = state.clone()
    next_state[:, :2] += 0.1 * action[:, :1]
    next_state[:, 2] += 0.1 * action[:, 1] + 0.2 * state[:, 0].clamp(min=0)
    return Transitions(state, action, next_state)

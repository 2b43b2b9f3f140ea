"""Why a simulator does not confirm recorded rows: each cause in a world where it is the only one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from approved import refused
from torch import Tensor

import mocoda
from mocoda import LocalGraph, Transitions
from mocoda.engine.randomness import Stream

GRAPH = LocalGraph(
    state={"cart": [0, 1], "box": 2}, action={"push": 0}, edges={"cart": ["cart", "push"], "box": ["box"]}
)


def step(rows: Tensor) -> Tensor:
    """A cart (place, velocity) that is pushed against a spring, and a box that rests."""
    place, velocity, box, push = rows.unbind(1)
    velocity = 0.95 * velocity - 0.1 * place + 0.1 * push
    return torch.stack([place + 0.1 * velocity, velocity, box], 1)


def record(truth: Callable[[Tensor], Tensor] = step, episodes: int = 40, length: int = 25) -> Transitions:
    stream = Stream(0, "step-check")
    state, rows = stream.normal(episodes, 3), []
    for _ in range(length):
        rows.append(torch.cat([state, stream.normal(episodes, 1)], 1))
        state = truth(rows[-1])
    walked = torch.stack(rows, 1).flatten(0, 1)
    return Transitions(
        walked[:, :3],
        walked[:, 3:],
        truth(walked),
        columns=("place", "velocity", "box", "push"),
        episode=torch.arange(len(walked)) // length,
    )


def twice(rows: Tensor) -> Tensor:
    return step(torch.cat([step(rows), rows[:, 3:]], 1))


DATA = record()
LATE = replace(DATA, next_state=step(torch.cat([DATA.next_state, DATA.action.roll(-1, 0)], 1)))
SHIFTED = replace(DATA, action=DATA.action.roll(-1, 0))
PLACES = LocalGraph(state={"cart": 0}, action={"push": 0}, edges={"cart": ["cart", "push"]})
BLIND = Transitions(
    DATA.state[:, :1], DATA.action, DATA.next_state[:, :1], columns=("place", "push"), episode=DATA.episode
)


def test_a_simulator_that_confirms_recorded_rows_is_told_so() -> None:
    found = mocoda.check_step(DATA, step, GRAPH)
    assert (found.confirmed, found.rows, found.causes, found.off) == (1.0, 200, (), {})


@pytest.mark.parametrize(
    ("data", "simulator", "word"),
    [
        (DATA, lambda rows: rows[:, :3], "returns the state that it is given"),
        (LATE, step, "one step late"),
        (SHIFTED, step, "With the action of the row before"),
        (record(twice), step, "2 calls of step"),
        (DATA, lambda rows: step(rows) + torch.tensor([0.5, 0.0, 0.0]), "same in most rows"),
        (DATA, lambda rows: rows[:, :3] + 3.7 * (step(rows) - rows[:, :3]), "3.7 times as long"),
        (DATA, lambda rows: step(rows) + 0.1 * torch.randn(len(rows), 3), "two replays agree in"),  # noqa: TID251
    ],
    ids=["still", "late", "action", "substeps", "origin", "longer", "random"],
)
def test_the_cause_is_named(data: Transitions, simulator: Callable[[Tensor], Tensor], word: str) -> None:
    found = mocoda.check_step(data, simulator, GRAPH)
    assert found.confirmed < 0.5 and word in str(found)


def test_missing_velocities_are_named() -> None:
    found = mocoda.check_step(
        BLIND, lambda rows: step(torch.cat([rows[:, :1], torch.zeros(len(rows), 2), rows[:, 1:]], 1))[:, :1], PLACES
    )
    assert "lacks velocities" in str(found) and "place in" in str(found)


def test_a_column_that_never_moves_has_a_tolerance_of_its_own() -> None:
    """The simulator, and then a model, move a box that rests in the data, by little compared with the cart's steps."""

    def bumping(rows: Tensor) -> Tensor:
        return step(rows) + torch.tensor([0.0, 0.0, 0.02])

    found = mocoda.check_step(DATA, bumping, GRAPH)
    assert found.confirmed == 0 and set(found.off) == {"box"}
    table = LocalGraph(state={"cart": [0, 1, 2]}, action={"push": 0}, edges={"cart": ["cart", "push"]})
    for graph in (GRAPH, table):
        made = replace(DATA, next_state=bumping(DATA.rows))
        assert mocoda.audit(DATA, step, graph).confirmed == 1 and mocoda.audit(made, step, graph).confirmed == 0


def test_data_without_recorded_rows_is_refused() -> None:
    made = replace(DATA, provenance={"recipe": torch.full((len(DATA),), 5)})
    with refused():
        mocoda.check_step(made, step, GRAPH)

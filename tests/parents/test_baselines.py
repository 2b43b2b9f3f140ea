"""The recipes without a mixture: emp, coda, dyna and rand, what each promises of its rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from approved import refused
from numpy.typing import NDArray
from parents_world import DATA, TASK, Box, Counting, as_set
from scipy.stats import kstest
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import Dyna, Parents, ParentsWithChildren, fit_parents
from mocoda.parents.baselines import RecordedParents, SwappedParents
from mocoda.tasks.navigation import GRAPH, Navigation, coupled

Floats = NDArray[np.float64]


def transitions(rows: Floats | Tensor, next_state: Floats | Tensor) -> Transitions:
    states = next_state.shape[1]
    return Transitions(rows[:, :states], rows[:, states:], next_state)


def with_children(parents: Parents, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    assert isinstance(parents, ParentsWithChildren)
    return parents.sample_with_children(n, seed=seed)


# emp


@pytest.mark.parametrize("n", [1, 7, 20, 50])
def test_emp_passes_over_all_rows_evenly(n: int) -> None:
    data = DATA[:20]
    rows, children = with_children(RecordedParents(data), n)
    recorded = torch.cat([data.rows, data.next_state], 1)
    drawn = torch.cat([rows, children], 1)
    times = (drawn[:, None] == recorded[None]).all(2).sum(0)  # rows of the data are all different
    assert times.sum() == n
    assert set(times.tolist()) <= {n // 20, -(-n // 20)}


# coda


def test_coda_recombines_whole_recorded_components_and_leaves_linked_rows_alone() -> None:
    rows, children = with_children(SwappedParents(DATA, GRAPH), 3_000)
    linked = coupled(DATA.rows)
    assert linked.float().mean() > 0.1
    assert not coupled(rows).any()
    for axis in (0, 1):
        free = DATA[~linked]
        recorded = as_set(free.rows[:, axis], free.rows[:, axis + 2], free.next_state[:, axis])
        assert as_set(rows[:, axis], rows[:, axis + 2], children[:, axis]) <= recorded
    assert len(as_set(*rows.T) - as_set(*DATA.rows.T)) > 2_900


def test_coda_makes_no_row_whose_own_graph_links_what_was_exchanged() -> None:
    # Bottom right and top left rows are free, but together they give rows of the linked quadrant.
    stream = Stream(0, "corners")
    state = torch.cat([stream.uniform(500, 2) * 0.4 + corner for corner in torch.tensor([[0.6, 0.0], [0.0, 0.6]])])
    rows = torch.cat([state, stream.uniform(1_000, 2, low=-1.0)], 1)
    data = transitions(rows, TASK.step(rows))
    assert not coupled(rows).any()
    new, children = with_children(SwappedParents(data, GRAPH), 2_000)
    assert not coupled(new).any()
    assert (new[:, :2] < 0.5).all(1).float().mean() > 0.2  # the other corner, which nobody recorded, is there
    assert (TASK.step(new) - children).abs().max() < 1e-6


def test_coda_without_disconnected_components_and_dyna_without_a_model_are_refused() -> None:
    graph = LocalGraph(state={"x": 0, "y": 1}, action={"u": [0, 1]}, edges={"x": ["x", "u"], "y": ["y", "u"]})
    with refused():
        SwappedParents(DATA[:100], graph).sample(5, seed=0)
    with refused():
        fit_parents(DATA, GRAPH, "dyna", task=TASK)  # without a model


# dyna


def counted(rows: int) -> Transitions:
    """Starts 0, 1, 2, ... with actions that no box allows."""
    state = torch.stack([torch.zeros(rows), torch.arange(float(rows))], 1)
    return Transitions(state, torch.full((rows, 2), 7.0), state)


GRAPH_OF_TWO = LocalGraph(
    state={"steps": 0, "start": 1}, action={"u": [0, 1]}, edges={"steps": ["steps"], "start": ["start"]}
)


@pytest.mark.parametrize("horizon", [0, 1, 5])
def test_dyna_records_every_step_up_to_the_horizon_as_often(horizon: int) -> None:
    n = 120 * (horizon + 1)
    parents = fit_parents(counted(30), GRAPH_OF_TWO, Dyna(horizon=horizon), model=Counting(), task=Box())
    rows = parents.sample(n, seed=0)
    steps = rows[:, 0].long()
    assert steps.bincount().tolist() == [120] * (horizon + 1)  # recorded rows are 1 of horizon + 1
    starts = [sorted(rows[steps == step, 1].tolist()) for step in range(horizon + 1)]
    assert all(start == starts[0] for start in starts)
    assert set(starts[0]) <= set(range(30)) and len(set(starts[0])) > 20


def test_dyna_takes_recorded_actions_first_and_uniform_ones_from_the_box_after() -> None:
    rows = fit_parents(counted(30), GRAPH_OF_TWO, "dyna", model=Counting(), task=Box()).sample(6_000, seed=0)
    later = rows[:, 0] > 0
    assert (rows[~later, 2:] == 7.0).all()
    assert kstest(rows[later, 2].numpy(), "uniform", args=(-1.0, 2.0)).pvalue > 0.001
    assert kstest(rows[later, 3].numpy(), "uniform", args=(2.0, 1.0)).pvalue > 0.001
    assert abs(float(np.corrcoef(rows[later, 2], rows[later, 3])[0, 1])) < 0.06


# rand


@pytest.mark.parametrize("task", [TASK, None])
def test_rand_is_uniform_in_the_box_of_the_task_or_of_the_data(task: Navigation | None) -> None:
    rows = fit_parents(DATA, GRAPH, "rand", task=task).sample(5_000, seed=0)
    low, high = TASK.box if task else (DATA.rows.amin(0), DATA.rows.amax(0))
    for column in range(4):
        width = (high - low)[column].item()
        assert kstest(rows[:, column].numpy(), "uniform", args=(low[column].item(), width)).pvalue > 0.001
    correlation = np.corrcoef(rows.T.numpy())
    assert np.abs(correlation - np.eye(4)).max() < 0.06


def test_coda_keeps_a_row_only_where_every_child_has_the_edges_of_where_it_comes_from() -> None:
    # a depends on u only where b > 0, so a's next value may not move to a row whose b has the other sign.
    def local(rows: Tensor) -> Tensor:
        mask = torch.tensor([[True, False], [True, True], [False, False]]).repeat(len(rows), 1, 1)
        mask[:, 1, 0] = False
        mask[:, 2, 0] = rows[:, 1] > 0
        return mask

    graph = LocalGraph(state={"a": 0, "b": 1}, action={"u": 0}, edges={"a": ["a"], "b": ["b"]}, local=local)
    stream = Stream(0, "coda-edges")
    state, action = stream.normal(2_000, 2), stream.normal(2_000, 1)

    def truth(rows: Tensor) -> Tensor:
        moved = torch.where(rows[:, 1] > 0, rows[:, 2], torch.zeros(()))
        return torch.stack([rows[:, 0] + moved, rows[:, 1]], 1)

    data = Transitions(state, action, truth(torch.cat([state, action], 1)))
    rows, children = SwappedParents(data, graph).sample_with_children(1_000, seed=0)
    assert children.equal(truth(rows))

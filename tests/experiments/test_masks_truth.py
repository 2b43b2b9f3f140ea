"""True edges by replay: where masks are exact too, the two agree, except where an edge is about a region."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from approved import refused
from torch import Tensor

from experiments.masks import dense
from experiments.masks.measures import others
from experiments.masks.truth import is_exact, replayed_edges, reproduced, true_edges, true_share
from experiments.random_dag import make_world
from experiments.worlds import COUPLED
from mocoda import LocalGraph, Transitions, make_task
from mocoda.engine.randomness import Stream


def both(name: str, rows: int) -> tuple[Tensor, Tensor, Any]:
    """A world's exact edges, and those by replay."""
    task: Any = make_world(name)
    data = task.collect(rows, seed=0)
    return true_edges(task, data), replayed_edges(data, task.graph, task.step), task


@pytest.mark.parametrize("name", ["objects:2", "objects:4", "dag:5", "dag:10"])
def test_replay_finds_the_exact_edges_of_what_acts_now_and_then(name: str) -> None:
    exact, replayed, _ = both(name, 1_000)
    away = others(exact)
    found, wanted = replayed[:, away], exact[:, away]
    assert bool(wanted.any()) and float((found != wanted).float().mean()) < 0.004
    assert float(found[wanted].float().mean()) > 0.98 and float(wanted[found].float().mean()) > 0.95
    assert float(replayed[:, ~away].float().mean()) > 0.97  # a factor's own value matters, unless a wall stops it


def test_replay_agrees_in_navigation_on_actions_and_says_less_of_positions() -> None:
    """In the quadrant y' depends on x as far as x may leave it: another x from inside the quadrant changes nothing."""
    exact, replayed, task = both("navigation", 2_000)
    parents, children = task.graph.parents, task.graph.children
    missed = {
        f"{parent} -> {child}": float((exact & ~replayed)[:, p, c].float().mean())
        for p, parent in enumerate(parents)
        for c, child in enumerate(children)
    }
    assert float((replayed & ~exact).float().mean(0).max()) < 0.01
    for edge in ("dx -> y", "dy -> x", "x -> x", "y -> y", "dx -> x", "dy -> y"):
        assert missed[edge] < 0.02
    assert missed["x -> y"] > 0.1 and missed["y -> x"] > 0.1


def test_a_change_within_the_simulators_own_noise_is_no_edge() -> None:
    """Two factors that glide by themselves, in a simulator whose answers shake."""
    graph = LocalGraph(state={"a": 0, "b": 1}, action={"u": 0}, edges={"a": ["a"], "b": ["b"]})
    rows, calls = Stream(0, "rows").normal(300, 3), iter(range(10**6))

    def shaky(given: Tensor) -> Tensor:
        moved = given[:, :2] + torch.stack([0.1 * given[:, 2], torch.zeros(len(given))], 1)
        return moved + 0.005 * Stream(next(calls), "noise").uniform(len(given), 2)

    data = Transitions(rows[:, :2], rows[:, 2:], rows[:, :2] + 0.1 * rows[:, 2:])
    found = replayed_edges(data, graph, shaky)
    assert float(found[:, 0, 1].float().mean()) == 0.0 == float(found[:, 2, 1].float().mean())
    assert float(found[:, 0, 0].float().mean()) > 0.9 and float(found[:, 2, 0].float().mean()) > 0.2


def test_a_replay_that_does_not_do_what_was_recorded_is_told_by_child() -> None:
    """The simulator lacks what pushed b in every third recorded row."""
    graph = LocalGraph(state={"a": 0, "b": 1}, action={"u": 0}, edges={"a": ["a"], "b": ["b"]})
    rows, pushed = Stream(0, "rows").normal(300, 3), torch.arange(300) % 3 == 0

    def step(given: Tensor) -> Tensor:
        return given[:, :2] + 0.1 * given[:, 2:]

    after = step(rows)
    after[pushed, 1] += 0.5
    found = reproduced(Transitions(rows[:, :2], rows[:, 2:], after), graph, step)
    assert bool(found[:, 0].all()) and found[:, 1].equal(~pushed)


def test_parents_are_redrawn_from_the_pool() -> None:
    """What acts in all rows acts no longer where the pool says that it is far away."""
    graph = LocalGraph(state={"a": 0, "b": 1}, action={"u": 0}, edges={"a": ["a"], "b": ["b"]})

    def pulled(rows: Tensor) -> Tensor:
        near = (rows[:, :1] - rows[:, 1:2]).abs() < 1
        return rows[:, :2] + torch.where(near, 0.5, 0.0)

    rows = 0.2 * Stream(0, "rows").normal(50, 3)
    data = Transitions(rows[:, :2], rows[:, 2:], pulled(rows) + 0.01 * rows[:, :2])
    inside, outside = replayed_edges(data, graph, pulled), replayed_edges(data, graph, pulled, pool=rows + 50)
    assert not bool(inside[:, 0, 1].any()) and bool(outside[:, 0, 1].all())
    assert not bool(outside[:, 2].any())
    assert replayed_edges(data, graph, pulled, pool=rows + 50).equal(outside)


def test_masks_are_exact_where_they_are_known_to_be_and_a_world_without_either_is_refused() -> None:
    exact = ("navigation", "objects", "dag", *COUPLED)
    assert all(is_exact(make_world(name)) for name in exact) and not is_exact(make_world("hooksweep2"))
    data = make_task("navigation").collect(20, seed=0)
    task: Any = SimpleNamespace(name="maze", graph=make_task("navigation").graph)
    with refused():
        true_edges(task, data)


@pytest.mark.parametrize("name", COUPLED)
def test_rows_by_coda_are_true_with_the_edges_of_a_coupled_world_and_false_without_them(name: str) -> None:
    task: Any = make_world(name)
    data, graph = task.collect(3_000, seed=0), task.graph
    assert data.next_state.equal(task.step(data.rows))
    alone = LocalGraph(graph.state, graph.action, {child: [child] for child in graph.children})
    given, lacking = (true_share(task, data, own, 1_000, seed=0) for own in (graph, alone))
    assert given is not None and lacking is not None and given > 0.995 and lacking < 0.8


def test_a_driver_depends_on_who_is_ahead_in_the_same_lane() -> None:
    task: Any = make_world("traffic")
    rows = task.collect(1_000, seed=0).rows
    mask, found = task.graph.mask(rows), 0
    for row, edges in zip(rows.tolist(), mask.tolist(), strict=True):
        for driver in (1, 2, 3):
            ahead = {
                row[3 * other] - row[3 * driver]: other
                for other in range(4)
                if abs(row[3 * other + 1] - row[3 * driver + 1]) < 0.5 and 0 < row[3 * other] - row[3 * driver] < 100
            }
            others = {other for other in range(4) if edges[other][driver]} - {driver}
            assert others <= ({ahead[min(ahead)]} if ahead else set())
            found += len(others)
            assert not ahead or min(ahead) > 70 or others
    assert found > 500


def test_nothing_is_exchanged_where_a_graph_connects_everything() -> None:
    task: Any = make_world("resource")
    assert true_share(task, task.collect(100, seed=0), dense(task.graph), 10, seed=0) is None


@pytest.mark.long
def test_a_hook_that_sweeps_a_box_has_an_edge_to_it_and_one_that_is_far_has_none() -> None:
    task: Any = make_task("hooksweep2")
    data = task.collect(75, seed=0)
    # A box that slides on by its own speed is not swept; one that gets faster is.
    moved = [(data.next_state - data.state)[:, own].norm(dim=1) for own in ([6, 7], [11, 12])]
    speed = [data.state[:, own].norm(dim=1) for own in ([9, 10], [14, 15])]
    faster = torch.stack(moved, 1) - torch.stack(speed, 1) > 0.004
    swept = faster.any(1).nonzero()[:8, 0]
    assert len(swept) >= 4
    chosen = data[torch.cat([swept, torch.arange(2)])]  # it starts away from the boxes
    edges = replayed_edges(chosen, task.graph, task.step, redraws=1, pool=data.rows[:6])
    hook = edges[:, task.graph.parents.index("gripper"), 1:]
    assert bool(hook[:-2][faster[swept]].all()) and not bool(hook[-2:].any())
    assert not bool(edges[-2:, 1, 2].any()) and not bool(edges[-2:, 2, 1].any())  # and the boxes are apart

"""The random-DAG world: its steps and masks against plain Python, and its data."""

from __future__ import annotations

import pytest
import torch
from approved import refused

from experiments.random_dag import ABSENT, DECAY, EPISODE, LONGEST, THRESHOLD, WIDTH, RandomDag, make_world


def test_the_world_is_made_by_name_and_number() -> None:
    task = make_world("dag:5")
    assert isinstance(task, RandomDag) and (task.factors, task.name) == (5, "dag:5")
    assert make_world("dag").name == "dag:10" and make_world("navigation").name == "navigation"
    with refused():
        RandomDag(0)


@pytest.mark.parametrize(("count", "pushes"), [(1, 0), (5, 20), (12, 20)])
def test_a_step_is_what_the_table_says(count: int, pushes: int) -> None:
    """What has an edge pushes, and nothing else does."""
    task = RandomDag(count)
    rows = task.collect(500 if count < 12 else 100, seed=2).rows
    law, mask = task.law, task.graph.mask(rows)
    assert float(torch.linalg.matrix_norm(law.turn, 2).max()) == pytest.approx(DECAY, abs=1e-5)
    pushed = 0
    for row, following, edges in zip(rows, task.step(rows), mask, strict=True):
        parts, before = row.unflatten(0, (-1, WIDTH)), pushed
        for child in range(count):
            wanted = law.turn[child] @ parts[child]
            for number in (law.child == child).nonzero()[:, 0].tolist():
                parent = int(law.parent[number])
                passed = law.weight[number] @ torch.cat([parts[child], parts[parent]]) > THRESHOLD
                passed &= bool(parts[child].any()) and bool(parts[parent].any())
                assert bool(passed) == bool(edges[parent, child])
                wanted = wanted + passed * (law.effect[number] @ parts[parent])
                pushed += int(passed)
            wanted = wanted * min(1.0, LONGEST / max(1e-9, float(wanted.norm())))
            assert torch.allclose(following.unflatten(0, (-1, WIDTH))[child], wanted, atol=1e-5)
        assert int(edges.sum()) == count + pushed - before  # every factor has an edge to itself
    assert pushed >= pushes


def test_some_factors_are_absent_for_whole_episodes_and_then_have_no_edges() -> None:
    task = RandomDag(5)
    data = task.collect(10_010, seed=0)
    absent = (data.state.unflatten(1, (-1, WIDTH)) == 0).all(2)
    episodes = absent[:10_000].unflatten(0, (-1, EPISODE))
    assert bool((episodes.all(1) == episodes.any(1)).all())
    assert float(absent.float().mean()) == pytest.approx(ABSENT, abs=0.03)
    mask = task.graph.mask(data.rows)[:, :5]
    itself = torch.eye(5, dtype=torch.bool)
    assert not bool((mask & ~itself & (absent[:, :, None] | absent[:, None])).any())

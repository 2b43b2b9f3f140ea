"""What is behind the smaller questions: worlds, judges, values and doses, against what can be known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from experiment_contract import results_of
from tiny_experiments import TINY

import experiments.stages
from experiments.ablations import SharedComposer, by_relevance, visited
from experiments.audit import Audit
from experiments.dose import Dose, changes
from experiments.worlds import NoisyWorld, bodies, navigation
from mocoda import Policies, Transitions, check_dynamics, fit_dynamics, make_task, train_agents
from mocoda.engine.randomness import Stream
from mocoda.tasks.navigation import Navigation

each_world = pytest.mark.parametrize("world", [navigation(), bodies()], ids=lambda world: world.name)


@cache
def measured(name: str, folder: Path) -> dict[str, Any]:
    return results_of(TINY[name], folder / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("questions")


# Worlds whose dynamics are known


@each_world
def test_the_graph_of_a_noisy_world_is_true(world: NoisyWorld) -> None:
    """A parent that the mask leaves out changes its child by no bit, as long as the mask stays."""
    stream = Stream(0, "test-whatif-paper")
    rows, width = world.record(500, stream.child("rows")), world.graph.state_width
    noise = stream.child("noise").normal(500, width)
    other = world.record(500, stream.child("other"))
    for number, columns in enumerate(world.graph.factors.values()):
        changed = rows.clone()
        changed[:, list(columns)] = other[:, list(columns)]
        mask = world.graph.mask(rows)
        stays = (mask == world.graph.mask(changed)).all(2).all(1)
        same = world.step(changed, noise) == world.step(rows, noise)
        for child, name in enumerate(world.graph.children):
            out = stays & ~mask[:, number, child]
            assert same[out][:, list(world.graph.factors[name])].all()


# What if


def test_kept_children_are_exact_and_knowing_the_dynamics_is_knowing_the_answer_only_without_noise(
    folder: Path,
) -> None:
    for cell in measured("whatif", folder)["cells"]:
        if cell["model"] == "knowing":
            assert (cell["mean"] == 0) == (cell["world"] == "navigation")
        elif cell["children"] == "not reached" and cell["model"] == "factored":
            assert cell["values"] == [0.0, 0.0] and cell["inside"] == 100
        else:
            assert min(cell["values"]) > 0


# Doses

DOSE: Dose = TINY["dose"]


@pytest.fixture(scope="module")
def doses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Transitions]]:
    """The data sets that agents are trained on."""
    datasets: dict[str, list[Transitions]] = {}

    def keep(given: Mapping[str, list[Transitions]], *agent: Any, **options: Any) -> Policies:
        datasets.update(given)
        return train_agents(given, *agent, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments.stages, "train_agents", keep)
        results_of(replace(DOSE, tasks=("navigation", "hooksweep2")), tmp_path_factory.mktemp("dose"))
    return datasets


@pytest.mark.long
@pytest.mark.parametrize("density", DOSE.densities)
def test_a_dose_begins_with_the_recorded_rows_and_all_of_the_smaller_doses(
    doses: dict[str, list[Transitions]], density: str
) -> None:
    for size in (120, 200, 150):
        for seed in range(1 if size == 150 else 2):
            tables = [
                doses[name][seed] for name in (f"{size}-recorded", f"{size}-{density}-0.5", f"{size}-{density}-3")
            ]
            for dose, one, other in zip(DOSE.doses, tables, tables[1:], strict=False):
                first = size + round(dose * size)
                for name, array in other[:first].arrays().items():
                    assert array.equal(one[:first].arrays()[name]), name
            assert len(tables[-1]) == 4 * size
    assert doses["200-recorded"][1].rows.equal(Navigation().collect(200, seed=1).rows)


@pytest.mark.parametrize(("task", "sign"), [("hooksweep2", 1), ("navigation", -1)])
def test_a_dose_hurts_where_the_whole_interval_of_the_paired_change_is_worse(task: str, sign: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        count = int(rng.integers(2, 6))
        reached = rng.normal(50, 5, (3, count)) + rng.normal(0, 10, (3, 1))
        cells = [
            {"task": task, "agent": "sac", "rows": 9, "density": "mixture" if dose else None, "dose": dose}
            | {"values": (sign * values).tolist()}
            for dose, values in zip((0.0, 1.0, 4.0), reached, strict=True)
        ]
        wanted = []
        for one, other in pairwise(reached):
            half = scipy.stats.t.ppf(0.975, count - 1) * (other - one).std(ddof=1) / count**0.5
            wanted.append(bool((other - one).mean() + half < 0))
        assert changes(cells) == wanted


# Ablations


def test_a_shared_composer_is_a_family_of_models_with_one_embedding_of_each_parent() -> None:
    composer = SharedComposer(members=2, hidden=(16,), features=8, epochs=2, batch=64)
    check_dynamics(composer)
    task = Navigation()
    weights = fit_dynamics(task.collect(200, seed=0), task.graph, composer).weights
    assert {weights[f"embed.{parent}.weight"].shape[1] for parent in task.graph.parents} == {1}
    assert weights["mlp.0.weight"].shape[1] == len(task.graph.children)


@pytest.mark.parametrize("world", ["navigation", "objects:2"])
def test_rows_are_relevant_that_are_near_what_the_target_task_visits(world: str) -> None:
    task, target = make_task(world), visited(make_task(world), seed=0)
    drawn = task.collect(1_000, seed=0)
    scale = drawn.state.std(0)

    def apart(states: Any) -> Any:
        return ((states[:, None] - target) / scale).norm(dim=2).amin(1)

    order = by_relevance(task, drawn, seed=0)
    assert sorted(order.tolist()) == list(range(1_000))
    assert apart(drawn.state[order]).diff().min() >= -1e-2  # distances of near states are rounded


# Audits

AUDIT: Audit = TINY["audit"]


def test_recorded_and_coda_s_rows_are_confirmed_where_a_state_says_all(folder: Path) -> None:
    results = measured("audit", folder)
    for name, found in results["tasks"].items():
        assert found["recorded"] == {**found["recorded"], "rows": 120, "share": 1.0}
        assert found["audits"]["coda"]["confirmed"] > 0.9
        for one in found["audits"].values():
            assert one["rows"] == 120 and one["by"]["recipe"]["recorded"] == found["recorded"]
            assert set(one["by"]["factor"]) <= set(make_task(name).graph.children)


@pytest.mark.long
def test_hooksweep2_is_audited_within_a_centimetre(tmp_path: Path) -> None:
    found = results_of(replace(AUDIT, tasks=("hooksweep2",)), tmp_path)["tasks"]["hooksweep2"]
    assert set(found["tolerance"].values()) == {0.01} and found["recorded"]["share"] > 0.7


# Learned masks

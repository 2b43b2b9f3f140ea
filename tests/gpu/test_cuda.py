"""On a GPU: the captured path is the eager one, runs do not feel their company, and a killed training goes on."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import mocoda
from experiments.masks import dense
from experiments.masks.mechanisms import Training
from experiments.masks.methods import METHODS
from experiments.random_dag import RandomDag
from mocoda.agents import Agent
from mocoda.agents import train as learning
from mocoda.agents.agent import AGENTS
from mocoda.engine.checkpoint import Checkpoint
from mocoda.engine.errors import InputError
from mocoda.engine.optimise import Captured
from mocoda.engine.randomness import Stream
from mocoda.engine.statistics import area_under_curve
from mocoda.graph import learned
from mocoda.parents.mixture import GaussianMixture

pytestmark = pytest.mark.cuda

SMALL = {"hidden": (64, 64), "batch": 128}
SAMPLERS = {"sampler_updates": 40, "sampler_batch": 64, "samplers": 2}


def small(name: str) -> Agent:
    return mocoda.make_agent(name, **SMALL, **(SAMPLERS if name == "bcq" else {}))


def recorded(seed: int = 0, rows: int = 2_000) -> mocoda.Transitions:
    data: mocoda.Transitions = mocoda.make_task("navigation").collect(rows, seed=seed).to("cuda")
    return data


def task_for(name: str) -> mocoda.Task | None:
    """2D Navigation, unless the agent needs a task with goals."""
    return None if AGENTS[name].goals_from_episodes else mocoda.make_task("navigation")


def trained(name: str, seeds: list[int], **more: Any) -> mocoda.Policies:
    data: dict[str, Any] = {"one": recorded(0), "other": recorded(1)}
    settings = {"updates": 400, "task": task_for(name), "evaluate_every": 50, "episodes": 3} | more
    return mocoda.train_agents(data, small(name), seeds=seeds, **settings)


def assert_close(one: mocoda.Policy, other: mocoda.Policy, tolerance: float) -> None:
    """Every tensor differs by less than this share of its size; Adam makes much of rounding where gradients are 0."""
    for name, weight in one.weights.items():
        assert float((weight - other.weights[name]).norm()) <= tolerance * float(weight.norm()), name


@pytest.mark.parametrize("name", AGENTS)
def test_the_captured_path_equals_the_eager_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = trained(name, [0])
    monkeypatch.setattr(Captured, "_replayed", lambda self, tensors, phase: self.work(tensors, phase))
    eager = trained(name, [0])
    for key in captured:
        assert_close(captured[key], eager[key], 1e-6)
    assert captured.curves["steps"].equal(eager.curves["steps"])


@pytest.mark.parametrize("name", AGENTS)
def test_a_run_is_the_same_alone_and_in_company_to_tolerance(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # cuBLAS chooses its algorithm by the number of networks; in float32 that is a matter of the last bits.
    monkeypatch.setattr(learning, "fast_products", lambda device: nullcontext())
    together, alone = trained(name, [0, 1, 2], updates=50), trained(name, [1], updates=50)
    for data in ("one", "other"):
        assert_close(together[data, 1], alone[data, 1], 1e-2)


@pytest.mark.parametrize("name", AGENTS)
def test_an_interrupted_training_goes_on_and_ends_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StopError(Exception):
        pass

    def stop(stage: str, done: int, total: int) -> None:
        if done >= 250:
            raise StopError

    whole = trained(name, [0])
    monkeypatch.setattr(learning, "Checkpoint", lambda path, identity: Checkpoint(path, identity, interval=0.0))
    file = tmp_path / "checkpoint.safetensors"
    with pytest.raises(StopError):
        trained(name, [0], checkpoint=file, progress=stop)
    again = trained(name, [0], checkpoint=file)
    for key in whole:
        assert_close(whole[key], again[key], 1e-5)


def test_goals_within_a_distance_are_captured_and_functions_that_cannot_be_are_refused() -> None:
    data = recorded()
    data = replace(data, source={**data.source, "achieved_goal": list(data.columns[:2]), "goal_tolerance": 0.1})
    mocoda.train_agents({"within": data}, small("gciql"), seeds=[0], updates=40)
    task = SimpleNamespace(
        name="own",
        goals=lambda n, *, seed, device: data.state[:n],
        achieved=lambda state: state,
        reached=lambda achieved, goal: ((achieved - goal).abs() < goal.new_tensor([0.1, 0.2])).all(1),
    )
    with pytest.raises(InputError, match="cannot be captured"):
        mocoda.train_agents({"own": data}, small("gciql"), seeds=[0], updates=40, task=task)


@pytest.mark.parametrize("epoch_rows", [None, 1_000])
@pytest.mark.parametrize("architecture", ["full", "local"])
def test_the_captured_dynamics_are_the_eager_ones(
    architecture: str, epoch_rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = mocoda.DynamicsConfig(
        hidden=(32, 32),
        features=32,
        epochs=4,
        epoch_rows=epoch_rows,
        batch=128,
        window=2,
        tf32=epoch_rows is not None,
    )
    graph = mocoda.make_task("navigation").graph
    captured = mocoda.fit_dynamics(recorded(), graph, architecture, config=config)
    monkeypatch.setattr(Captured, "_replayed", lambda self, tensors, phase: self.work(tensors, phase))
    eager = mocoda.fit_dynamics(recorded(), graph, architecture, config=config)
    for name, weight in captured.weights.items():
        torch.testing.assert_close(weight, eager.weights[name], rtol=1e-5, atol=1e-6, msg=name)


def test_a_small_mixture_is_fitted_as_on_a_cpu_and_lives_on_the_gpu() -> None:
    points = Stream(0, "test-mixture").uniform(500, 2)
    here, there = (GaussianMixture.fit(p, components=4, seed=0) for p in (points, points.cuda()))
    assert there.means.is_cuda and there.weights.is_cuda and there.covariances.is_cuda
    assert there.means.cpu().equal(here.means) and there.covariances.cpu().equal(here.covariances)


class TrueModel:
    """What the simulator of 2D Navigation does, as a model."""

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        following: Tensor = mocoda.make_task("navigation").step(rows)
        return following


@pytest.mark.parametrize("recipe", ["coda", "mocoda"])
def test_counterfactual_episodes_are_made_where_the_data_is_and_come_true(recipe: str) -> None:
    task = mocoda.make_task("navigation")
    made = mocoda.augment_episodes(
        recorded(), task.graph, recipe=recipe, model=TrueModel(), episodes=50, task=task, keep_recorded=False
    )
    assert made.episode is not None and made.step is not None
    assert made.device.type == made.episode.device.type == "cuda"
    follows = (made.episode[1:] == made.episode[:-1]).nonzero()[:, 0]
    assert made.step[follows + 1].equal(made.step[follows] + 1)
    assert made.next_state[follows].equal(made.state[follows + 1])
    assert float((task.step(made.rows) - made.next_state).abs().max()) < 1e-6


def prepare_rows(model: Path) -> mocoda.Augmentation:
    """Rows for shards, in pieces, as every process prepares them."""
    task, data = mocoda.make_task("navigation"), recorded(rows=4_000)
    parents = mocoda.fit_parents(data, task.graph, mocoda.make_recipe("mocoda", density="mixture"))
    trained = mocoda.Dynamics.load(model, task.graph).to("cuda")
    return mocoda.Augmentation(
        data, parents, trained, rows=400_000, task=task, provenance=False, keep_recorded=False, chunk=50_000
    )


def test_shards_are_the_same_bytes_whichever_process_makes_them(tmp_path: Path) -> None:
    task, model = mocoda.make_task("navigation"), tmp_path / "dynamics.safetensors"
    mocoda.fit_dynamics(recorded(), task.graph, config=mocoda.DynamicsConfig(epochs=2)).save(model)
    for folder, engine in (("here", None), ("there", mocoda.make_engine("processes", workers=3))):
        mocoda.augment_to_shards(tmp_path / folder, partial(prepare_rows, model), shards=6, engine=engine)
    here, there = ({path.name: path.read_bytes() for path in (tmp_path / f).iterdir()} for f in ("here", "there"))
    assert len(here) == 7 and here == there


# Masks


@pytest.mark.parametrize("name", ["gradient", "drop-one", "redrawn", "cai"])
def test_a_method_trains_and_scores_on_a_gpu(name: str) -> None:
    task = RandomDag(5)
    data, rows = (task.collect(count, seed=count).to("cuda") for count in (2_000, 300))
    method = METHODS.make(name, training=Training(hidden=(32, 32), updates=55, batch=64))
    scores = method.fit(data, dense(task.graph), seed=0)(rows)
    assert scores.device.type == "cuda" and scores.shape == (300, 6, 5) and bool(torch.isfinite(scores).all())


def test_a_graph_is_learned_in_captured_programs() -> None:
    task = mocoda.make_task("navigation")
    data, rows = (task.collect(4_000, seed=seed).to("cuda") for seed in (0, 1))
    graph = mocoda.learn_graph(data, learner=mocoda.GateLearner(runs=2, baseline_steps=300, steps=600))
    found = area_under_curve(graph.edge_probability(rows.rows)[:, 3, 0], task.graph.mask(rows.rows)[:, 3, 0])["auroc"]
    assert found > 0.95


def test_probabilities_are_those_of_a_cpu_in_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    task = RandomDag(5)
    data = task.collect(3_000, seed=0).to("cuda")
    graph = mocoda.learn_graph(data, learner=mocoda.GateLearner(runs=2, baseline_steps=55, steps=55), unseen="apart")
    whole, rows = graph.edge_probability(data.rows), data.rows.cpu()
    assert torch.allclose(whole.cpu(), graph.edge_probability(rows), atol=1e-3)
    monkeypatch.setattr(learned, "MAX_EDGES", 1)
    assert torch.allclose(whole, graph.edge_probability(data.rows), atol=1e-4)

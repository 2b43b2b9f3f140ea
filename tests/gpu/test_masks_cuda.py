"""On a GPU: the methods of the exam of masks train in captured programs, and find what they find on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mocoda
from experiments.masks import dense
from experiments.masks.mechanisms import Training
from experiments.masks.methods import METHODS
from experiments.random_dag import RandomDag
from mocoda.engine.statistics import area_under_curve
from mocoda.graph import learned

pytestmark = pytest.mark.cuda
TRAINED = ("gradient", "drop-one", "redrawn", "cai")


@pytest.mark.parametrize("name", TRAINED)
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


def test_a_model_of_a_learned_graph_is_saved_and_read(tmp_path: Path) -> None:
    data = mocoda.make_task("navigation").collect(2_000, seed=0).to("cuda")
    graph = mocoda.learn_graph(data, learner=mocoda.GateLearner(runs=1, baseline_steps=55, steps=55))
    config = mocoda.DynamicsConfig(members=2, hidden=(16,), features=8, epochs=1)
    model = mocoda.fit_dynamics(data, graph, "local", seed=0, config=config)
    graph.save(tmp_path / "learned.graph")
    model.save(tmp_path / "model.safetensors")
    read = mocoda.load_graph(tmp_path / "learned.graph")
    again = mocoda.Dynamics.load(tmp_path / "model.safetensors", read).to("cuda")
    assert again.sample(data.rows, seed=0).equal(model.sample(data.rows, seed=0))

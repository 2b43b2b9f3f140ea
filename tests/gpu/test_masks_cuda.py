"""On a GPU: the methods of the exam of masks train in captured programs, and find what they find on a CPU."""

from __future__ import annotations

import pytest
import torch

import mocoda
from mocoda.analysis.rates import area_under_curve
from mocoda.paper.masks import METHODS, Training
from mocoda.paper.masks.experiment import dense

pytestmark = pytest.mark.cuda
TRAINED = ("gradient", "drop-one", "redrawn", "attention", "cai", "code-book", "null-test")


@pytest.mark.parametrize("name", TRAINED)
def test_a_method_trains_and_scores_on_a_gpu(name: str) -> None:
    task = mocoda.make_task("dag:5")
    data, rows = (task.collect(count, seed=count).to("cuda") for count in (2_000, 300))
    method = METHODS.make(name, training=Training(hidden=(32, 32), updates=55, batch=64))
    scores = method.fit(data, dense(task.graph), seed=0)(rows)
    assert scores.device.type == "cuda" and scores.shape == (300, 6, 5) and bool(torch.isfinite(scores).all())


def test_a_gradient_finds_actions_that_move_both_coordinates() -> None:
    task = mocoda.make_task("navigation")
    data, rows = (task.collect(4_000, seed=seed).to("cuda") for seed in (0, 1))
    scores = METHODS.make("gradient", training=Training(updates=3_000)).fit(data, dense(task.graph), seed=0)(rows)
    found = area_under_curve(scores[:, 2, 1], task.graph.mask(rows.rows)[:, 2, 1])["auroc"]
    assert found > 0.9


def test_a_graph_is_learned_in_captured_programs() -> None:
    task = mocoda.make_task("navigation")
    data, rows = (task.collect(4_000, seed=seed).to("cuda") for seed in (0, 1))
    graph = mocoda.learn_graph(data, config=mocoda.GraphConfig(runs=2, usual_steps=300, steps=600))
    found = area_under_curve(graph.edge_probability(rows.rows)[:, 3, 0], task.graph.mask(rows.rows)[:, 3, 0])["auroc"]
    assert found > 0.95

"""The networks of all families against slow twins."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
import torch
from approved import refused
from dynamics_world import GRAPH, TINY, model, some_rows, world
from torch import Tensor

from mocoda import Dynamics, DynamicsConfig, fit_dynamics
from mocoda.dynamics.fit import VARIANCE_FLOOR


def slow_twin(made: Dynamics, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Appendix B.3 member by member, row by row, child by child, parent by parent, in double precision."""
    graph, config = made.graph, made.config
    assert isinstance(config, DynamicsConfig)
    weights = {name: weight.double() for name, weight in made.weights.items()}
    scaling = {name: values.double() for name, values in made.scaling.items()}
    masks = graph.mask(rows) if made.architecture == "local" else graph.sparsest.expand(len(rows), -1, -1)
    mean = torch.full((config.members, len(rows), graph.state_width), math.nan, dtype=torch.float64)
    variance, layers, rows = mean.clone(), len(config.hidden) + 1, rows.double()
    everything = ("everything",)
    for member in range(config.members):

        def layer(name: str, x: Tensor, *index: int, member: int = member) -> Tensor:
            return x @ weights[f"{name}.weight"][(member, *index)] + weights[f"{name}.bias"][(member, *index)][0]

        for n, row in enumerate(rows):
            seen = (row - scaling["input_shift"]) / scaling["input_scale"]
            for c, child in enumerate(everything if made.architecture == "full" else graph.children):
                parents = [(p, name) for p, name in enumerate(graph.parents) if child in everything or masks[n, p, c]]
                x = torch.zeros(config.features if made.architecture == "local" else len(row), dtype=torch.float64)
                for _, parent in parents:
                    columns = list(graph.factors[parent])
                    if made.architecture == "local":
                        x = x + layer(f"embed.{parent}", seen[columns], c).clamp(min=0)
                    else:
                        x[columns] = seen[columns]
                for number in range(layers):
                    x = layer(f"mlp.{number}", x, c)
                    x = x.clamp(min=0) if number < layers - 1 else x
                output = x
                half = len(output) // 2  # narrower children leave the rest of their outputs unused
                columns = list(range(graph.state_width)) if child in everything else list(graph.factors[child])
                for i, column in enumerate(columns):
                    scale = scaling["target_scale"][column]
                    mean[member, n, column] = output[i] * scale + scaling["target_shift"][column]
                    if config.predict_change and (child in everything or masks[n, c, c]):
                        mean[member, n, column] += row[column]
                    spread = math.log1p(math.exp(float(output[half + i]))) + VARIANCE_FLOOR
                    variance[member, n, column] = spread * scale**2
    return mean, variance.sqrt()


@pytest.mark.parametrize("hidden", [(), (16,), (16, 12, 20)])
@pytest.mark.parametrize("predict_change", [True, False])
@pytest.mark.parametrize("family", ["full", "global", "local"])
def test_predictions_equal_those_of_loops(family: str, predict_change: bool, hidden: tuple[int, ...]) -> None:
    made, rows = model(family, replace(TINY, hidden=hidden, predict_change=predict_change)), some_rows(16)
    assert 0 < int((rows[:, 0] > 0).sum()) < 16  # both of the local graphs occur
    mean, scale = slow_twin(made, rows)
    found = made.predict(rows)
    torch.testing.assert_close(found.mean.double(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.scale.double(), scale, rtol=1e-5, atol=1e-5)


def test_a_deterministic_prediction_equals_that_of_loops() -> None:
    made, rows = model("deterministic", TINY), some_rows(16)
    found, masks = made.predict(rows), GRAPH.mask(rows)
    weights = {name: weight.double() for name, weight in made.weights.items()}
    for member in range(2):
        for n, row in enumerate(rows.double()):
            for c, child in enumerate(GRAPH.children):
                x = torch.cat([(row - made.scaling["input_shift"]) / made.scaling["input_scale"], masks[n, :, c]])
                for p, parent in enumerate(GRAPH.parents):
                    x[list(GRAPH.factors[parent])] *= masks[n, p, c]
                for number in range(3):
                    x = x @ weights[f"mlp.{number}.weight"][member, c] + weights[f"mlp.{number}.bias"][member, c, 0]
                    x = x.clamp(min=0) if number < 2 else x
                for i, column in enumerate(GRAPH.factors[child]):
                    change = x[i] * made.scaling["target_scale"][column] + made.scaling["target_shift"][column]
                    expected = float(change + row[column] * masks[n, c, c])
                    assert float(found.mean[member, n, column]) == pytest.approx(expected, abs=1e-5)
    assert bool(found.scale.eq(0).all())


def test_a_family_refuses_settings_that_it_does_not_have() -> None:
    with refused():
        functools.partial(fit_dynamics, world(), GRAPH, "deterministic")(config=TINY)

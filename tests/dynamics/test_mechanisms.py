"""The networks of all three architectures, against a slow twin."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from dynamics_world import TINY, A, S, each_architecture, model, some_rows
from torch import Tensor

from mocoda import Dynamics
from mocoda.dynamics.mechanisms import VARIANCE_FLOOR
from mocoda.engine.networks import Weights


def net(weights: Weights, index: tuple[int, ...], x: Tensor, layers: int) -> Tensor:
    for layer in range(layers):
        x = x @ weights[f"mlp.{layer}.weight"][index] + weights[f"mlp.{layer}.bias"][index][0]
        x = x.clamp(min=0) if layer < layers - 1 else x
    return x


def slow_twin(made: Dynamics, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Appendix B.3 member by member, row by row, child by child, parent by parent, in double precision."""
    graph, config = made.graph, made.config
    weights = {name: weight.double() for name, weight in made.weights.items()}
    scaling = {name: values.double() for name, values in made.scaling.items()}
    masks = graph.mask(rows) if made.architecture == "local" else graph.sparsest.expand(len(rows), -1, -1)
    rows = rows.double()
    mean = torch.full((config.members, len(rows), graph.state_width), math.nan, dtype=torch.float64)
    variance = mean.clone()
    layers = len(config.hidden) + 1
    everything = ("everything",)
    mechanisms = everything if made.architecture == "full" else graph.children
    for member in range(config.members):
        for n, row in enumerate(rows):
            seen = (row - scaling["input_shift"]) / scaling["input_scale"]
            for c, child in enumerate(mechanisms):
                if made.architecture == "local":
                    x = torch.zeros(config.features, dtype=torch.float64)
                    for p, parent in enumerate(graph.parents):
                        if masks[n, p, c]:
                            weight, bias = (weights[f"embed.{parent}.{kind}"][member, c] for kind in ("weight", "bias"))
                            x = x + (seen[list(graph.factors[parent])] @ weight + bias[0]).clamp(min=0)
                elif made.architecture == "global":
                    x = torch.zeros_like(seen)
                    for parent in graph.edges[child]:
                        x[list(graph.factors[parent])] = seen[list(graph.factors[parent])]
                else:
                    x = seen
                output = net(weights, (member, c), x, layers)
                columns = range(graph.state_width) if child == "everything" else graph.factors[child]
                half = len(output) // 2  # narrower children leave the rest of their outputs unused
                for i, column in enumerate(columns):
                    scale, shift = scaling["target_scale"][column], scaling["target_shift"][column]
                    mean[member, n, column] = output[i] * scale + shift
                    if config.predict_change and (child == "everything" or masks[n, c, c]):
                        mean[member, n, column] += row[column]
                    spread = math.log1p(math.exp(float(output[half + i]))) + VARIANCE_FLOOR
                    variance[member, n, column] = spread * scale**2
    return mean, variance.sqrt()


@each_architecture
@pytest.mark.parametrize("predict_change", [True, False])
def test_predictions_equal_those_of_loops_over_members_rows_children_and_parents(
    architecture: str, predict_change: bool
) -> None:
    made = model(architecture, replace(TINY, predict_change=predict_change))
    rows = some_rows(24)
    assert 0 < int((rows[:, 0] > 0).sum()) < 24  # both of the local graphs occur
    mean, scale = slow_twin(made, rows)
    found = made.predict(rows)
    torch.testing.assert_close(found.mean.double(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.scale.double(), scale, rtol=1e-5, atol=1e-5)


@each_architecture
def test_networks_without_hidden_layers_are_linear_and_work(architecture: str) -> None:
    made = model(architecture, replace(TINY, hidden=()))
    mean, scale = slow_twin(made, some_rows(8))
    found = made.predict(some_rows(8))
    torch.testing.assert_close(found.mean.double(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.scale.double(), scale, rtol=1e-5, atol=1e-5)


def test_every_child_has_a_masked_composer_and_a_network_of_its_own() -> None:
    shapes = {name: tuple(weight.shape) for name, weight in model("local").weights.items()}
    embeddings = {"a": 2, "b": 1, "c": 3, "u": 2, "v": 1}
    expected = {f"embed.{name}.weight": (2, 3, width, 8) for name, width in embeddings.items()}
    expected |= {f"embed.{name}.bias": (2, 3, 1, 8) for name in embeddings}
    expected |= {"mlp.0.weight": (2, 3, 8, 16), "mlp.1.weight": (2, 3, 16, 16), "mlp.2.weight": (2, 3, 16, 6)}
    expected |= {"mlp.0.bias": (2, 3, 1, 16), "mlp.1.bias": (2, 3, 1, 16), "mlp.2.bias": (2, 3, 1, 6)}
    assert shapes == expected


def test_the_unfactored_model_is_one_network_and_the_global_one_has_one_per_child() -> None:
    full, factored = model("full").weights, model("global").weights
    assert tuple(full["mlp.0.weight"].shape) == (2, 1, S + A, 16)
    assert tuple(full["mlp.2.weight"].shape) == (2, 1, 16, 2 * S)
    assert tuple(factored["mlp.0.weight"].shape) == (2, 3, S + A, 16)
    assert tuple(factored["mlp.2.weight"].shape) == (2, 3, 16, 2 * 3)

"""Masked Composers compared, at a size that takes no time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from experiment_contract import check_experiment, files_in

from experiments.composer import Composer
from mocoda import DynamicsConfig, InputError
from mocoda.tasks.objects import Objects

SMALL = DynamicsConfig(members=2, hidden=(16,), features=16, epochs=3, batch=256, learning_rate=3e-3, window=2)
TINY = Composer(
    "tiny",
    seeds=1,
    dynamics=SMALL,
    object_seeds=2,
    object_dynamics=SMALL,
    depths=(1, 2),
    objects=(2,),
    rows=1_000,
    object_rows=600,
    test_rows=300,
    components=4,
)


def test_recombined_rows_have_every_parent_set_of_some_recorded_row_and_other_company() -> None:
    task = Objects(2)
    rows = TINY.object_test_rows(task, "cpu")
    for recorded, recombined in zip(*rows.values(), strict=True):
        for names in task.graph.parent_sets:
            columns = list(task.graph.columns(names))
            before, after = (part[:, columns] for part in (recorded, recombined))
            assert torch.equal(torch.unique(before, dim=0), torch.unique(after, dim=0))
            assert not before.equal(after)
        kept = {tuple(row) for row in recorded.tolist()} & {tuple(row) for row in recombined.tolist()}
        assert len(kept) < 10


def test_the_results_keep_the_contract_and_have_every_model_and_cell(tmp_path: Path) -> None:
    measured = TINY.run(device="cpu", folder=tmp_path)
    printed = check_experiment(TINY, measured, tmp_path)
    assert files_in(tmp_path) == sorted(TINY.outputs)
    results = measured.results
    kinds: dict[str, tuple[str, ...]] = {"navigation": ("unfactored", "separate", "shared")}
    kinds["2 objects"] = (*kinds["navigation"], "shared, alike")
    columns = {"navigation": ("emp", "dyna", "rand", "mocoda", "mocoda-u"), "2 objects": ("recorded", "recombined")}
    models = [(world, kind, depth) for world in kinds for kind in kinds[world] for depth in (1, 2)]
    assert [(m["world"], m["composer"], m["depth"]) for m in results["models"]] == models
    assert [(c["world"], c["composer"], c["depth"], c["column"]) for c in results["cells"]] == [
        (*one, column) for one in models for column in columns[one[0]]
    ]
    for cell in results["cells"]:
        assert len(cell["values"]) == (1 if cell["world"] == "navigation" else 2)
        assert cell["mean"] > 0 and f"{cell['column']} {cell['mean']:.3f}" in printed
    size = {(m["world"], m["composer"], m["depth"]): m["parameters"] for m in results["models"]}
    assert size["2 objects", "shared, alike", 2] < size["2 objects", "shared", 2] < size["2 objects", "separate", 2]
    assert all(model["epoch_seconds"] > 0 for model in results["models"])


def test_settings_that_cannot_be_are_refused_in_full() -> None:
    with pytest.raises(InputError) as caught:
        replace(TINY, object_seeds=0)
    assert str(caught.value) == "object_seeds must be at least 1, got 0."
    with pytest.raises(InputError) as caught:
        replace(TINY, dynamics=replace(SMALL, epochs=1))
    assert str(caught.value) == "the dynamics must train for at least 2 epochs, or their time is not known."

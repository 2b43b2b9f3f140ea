"""Models and agents with several masks, at a size that takes no time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from experiment_contract import check_experiment
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from experiments import run_experiment
from experiments.experiment import cell
from experiments.learned_masks import TESTED, LearnedMasks, draw_masks, near_mask, with_graph
from experiments.table1 import Table1
from experiments.table2 import Table2
from experiments.table3 import Table3
from mocoda import DynamicsConfig, GateLearner, InputError, load_graph, make_agent
from mocoda.engine.figure_style import BLUE
from mocoda.graph.learned import LearnedGraph
from mocoda.tasks.hooksweep import HookSweep2

MODEL = DynamicsConfig(members=2, hidden=(16,), features=8, epochs=1, epoch_rows=256, batch=128, window=1)
AGENT = make_agent("td3-bc", hidden=(8,), batch=32, standardise=True)
TINY = LearnedMasks(
    "tiny",
    seeds=1,
    sizes="tiny",
    graphs=GateLearner(runs=1, hidden=16, baseline_steps=4, steps=4, batch=16),
    caution=0.1,
)


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    table1 = replace(Table1.presets["quick"], rows=1_000, test_rows=100, components=2)
    table2 = replace(
        Table2.presets["quick"],
        dynamics=MODEL,
        agents=(AGENT,),
        rows=1_000,
        total=1_100,
        updates=4,
        evaluate_every=2,
        last=1,
        components=2,
    )
    table3 = replace(
        Table3.presets["quick"],
        dynamics=replace(MODEL, validation=100),
        agents=(AGENT,),
        rows=1_100,
        total=1_200,
        updates={"td3-bc": 4},
        evaluations=2,
        last=1,
        episodes=1,
        expert_episodes=6,
        confirmed_rows=10,
        components=2,
    )
    for kind, table in ((Table1, table1), (Table2, table2), (Table3, table3)):
        monkeypatch.setitem(kind.presets, "tiny", table)


def run(world: str, folder: Path) -> set[tuple[str, str]]:
    """What was measured: mask and measure."""
    experiment = replace(TINY, worlds=(world,))
    measured, _ = run_experiment(experiment, folder / "run", workers=0)
    check_experiment(experiment, measured, folder / "written")
    learned = load_graph(folder / "run" / world / "learned.graph")
    assert isinstance(learned, LearnedGraph)
    assert learned.caution == experiment.caution
    assert str(learned) == measured.results["learned"][world]
    return {(one["row"], one["column"]) for one in measured.results["cells"]}


def test_navigation_is_measured_with_every_mask_but_that_of_distance(tmp_path: Path) -> None:
    measures = (*(f"error x 100, {column}" for column in TESTED), "steps, td3-bc")
    masks = ("given", "learned", "dense")
    assert run("navigation", tmp_path) == {(mask, measure) for mask in masks for measure in measures}
    for path in (tmp_path / "run" / "navigation").glob("dynamics-*"):
        path.unlink()  # a finished world needs them no more
    assert run("navigation", tmp_path) == {(mask, measure) for mask in masks for measure in measures}
    assert not [*(tmp_path / "run" / "navigation").glob("dynamics-*")]


@pytest.mark.long
def test_hooksweep2_is_measured_with_every_mask(tmp_path: Path) -> None:
    found = run("hooksweep2", tmp_path)
    assert found >= {(mask, name) for mask in TINY.masks for name in ("confirmed, %", "success, %, td3-bc")}


def test_a_task_can_have_another_graph() -> None:
    task = HookSweep2()
    near = replace(task.graph, local=near_mask)
    assert with_graph(task, near).graph is near
    assert HookSweep2().graph is task.graph


def test_the_distance_rule_has_edges_between_what_is_near() -> None:
    rows = torch.zeros(1, 20)
    rows[:, 6:8] = torch.tensor([0.05, 0.05])  # box 1 at the gripper, box 2 far away
    rows[:, 11:13] = 1.0
    wanted = [[1, 1, 0], [1, 1, 0], [0, 0, 1], [1, 1, 0]]
    assert near_mask(rows)[0].int().tolist() == wanted


def test_every_panel_of_the_figure_has_its_bars(tmp_path: Path) -> None:
    measures = ("error", "steps", "success")
    cells = [{"world": "w", **cell(mask, name, [2.0, 3.0])} for name in measures for mask in ("given", "learned")]
    draw_masks(cells, tmp_path / "masks.png")
    blue = np.abs(imread(tmp_path / "masks.png")[..., :3] - to_rgb(BLUE)).max(-1) < 0.02
    assert all(float(panel.mean()) > 0.1 for panel in np.array_split(blue, len(measures), axis=1))


def test_masks_and_worlds_are_checked() -> None:
    with pytest.raises(InputError, match=r"^there is no mask 'drawn'; "):
        replace(TINY, masks=("drawn",))
    with pytest.raises(InputError, match=r"^worlds must be different ones, and at least one, got \[\]\.$"):
        replace(TINY, worlds=())
    with pytest.raises(InputError, match=r"^caution must be a probability between 0 and 1, got 2\.$"):
        replace(TINY, caution=2)

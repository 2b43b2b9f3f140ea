"""The contract of experiments, for every one of them, and how they are found, changed and run."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import rich.console
from rich.table import Table

from experiments import EXPERIMENTS, Experiment, Measured, find_experiment, run_experiment
from experiments.experiment import Stopwatch, compare_with_paper, spread, text_table
from mocoda import InputError
from mocoda.engine.files import write_json
from mocoda.engine.progress import Progress, silent

NAMES = (
    "table1",
    "table2",
    "table3",
    "scarcity",
    "theory",
    "neighbourhoods",
    "reweighting",
    "whatif",
    "composer",
    "entanglement",
    "rewards",
    "ablation",
    "proposals",
    "dose",
    "cubes",
    "masks",
    "learned-masks",
    "audit-navigation",
    "audit-objects",
    "audit-hooksweep2",
    "audit-cubes",
    "scale",
)


@dataclass(frozen=True)
class Counting(Experiment[Measured]):
    """Counts its seeds."""

    name = "counting"
    metric = "seeds"
    outputs = ("counting.json",)
    presets: ClassVar[dict[str, Counting]] = {}

    def run(
        self, *, device: str, folder: Path, progress: Progress = silent, workers: int | None = None, offset: int = 0
    ) -> Measured:
        progress("counting", self.seeds, self.seeds)
        counted = [float(seed + offset) for seed in range(self.seeds)]
        return Measured({**self.heading(device, Stopwatch()), "workers": workers, **spread(counted)})

    def write(self, measured: Measured, folder: Path) -> Table:
        write_json(folder / "counting.json", measured.results)
        return text_table("Counted", ("what", "mean"), [["seeds", f"{measured.results['mean']}"]])


def refused(work: Any, *given: Any, **named: Any) -> str:
    with pytest.raises(InputError) as caught:
        work(*given, **named)
    return str(caught.value)


# The contract


def test_experiments_are_listed_in_the_paper_s_order_with_a_line_each() -> None:
    assert tuple(EXPERIMENTS) == NAMES
    lines = EXPERIMENTS.summary.splitlines()
    assert [line.partition(": ")[0] for line in lines] == list(NAMES)
    assert all(20 < len(line) < 120 for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_presets_say_their_names_and_their_settings_are_json_values(name: str) -> None:
    kind = EXPERIMENTS[name]
    assert set(kind.presets) >= {"quick", "paper"}
    for preset, experiment in kind.presets.items():
        assert isinstance(experiment, kind) and experiment.preset == preset
        assert find_experiment(name, preset) is not None
        config = json.loads(json.dumps(experiment.config(), allow_nan=False))
        assert (config["preset"], config["seeds"]) == (preset, experiment.seeds)
    assert kind.outputs[0] == f"{name}.json" and any(output.endswith(".png") for output in kind.outputs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seeds", [0, -1])
def test_less_than_one_seed_is_refused_in_full(name: str, seeds: int) -> None:
    assert refused(find_experiment, name, seeds=seeds) == f"seeds must be at least 1, got {seeds}."


# Finding and changing


def test_what_is_not_there_is_refused_in_full() -> None:
    assert refused(find_experiment, "table4") == (
        f"there is no experiment 'table4'; there are: {', '.join(NAMES)}. Did you mean 'table3'?"
    )
    assert refused(find_experiment, "table1", "papr") == (
        "there is no preset 'papr'; there are: paper, quick. Did you mean 'paper'?"
    )
    message = "the experiment 'theory' has no setting 'columns'. Leave it out."
    assert refused(find_experiment, "theory", columns=("emp",)) == message
    message = "the experiment 'theory' has no setting 'standardise'. Leave it out."
    assert refused(find_experiment, "theory", standardise=True) == message


def test_settings_of_an_experiment_and_of_its_dynamics_are_changed_by_name() -> None:
    preset: Any = EXPERIMENTS["table2"].presets["quick"]
    changed: Any = find_experiment("table2", "quick", seeds=1, epochs=3, total=50_000)
    assert changed == replace(preset, seeds=1, total=50_000, dynamics=replace(preset.dynamics, epochs=3))
    assert preset.seeds == 2  # as it was


# Running


def test_an_experiment_is_run_and_written_in_a_folder_that_says_how(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    measured, table = run_experiment(Counting("tiny", 3), folder, workers=2, offset=4)
    assert measured.results["values"] == [4, 5, 6] and measured.results["workers"] == 2
    assert table.row_count == 1
    assert json.loads((folder / "counting.json").read_text())["mean"] == 5
    identity = json.loads((folder / "config.json").read_text())
    assert identity["command"] == "paper counting"
    assert identity["settings"] == {"preset": "tiny", "seeds": 3, "device": "cpu"}
    assert json.loads((folder / "progress.jsonl").read_text())["stage"] == "counting"


def test_a_folder_of_other_settings_is_refused_and_replaced_only_if_asked_for(tmp_path: Path) -> None:
    run_experiment(Counting("tiny", 3), tmp_path / "run")
    refused(run_experiment, Counting("tiny", 2), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "counting.json").read_text())["config"]["seeds"] == 3
    run_experiment(Counting("tiny", 2), tmp_path / "run", overwrite=True)
    assert json.loads((tmp_path / "run" / "counting.json").read_text())["config"]["seeds"] == 2


def test_laps_are_seconds_by_stage() -> None:
    clock = Stopwatch()
    assert "seconds_by_stage" not in Counting("tiny", 1).heading("cpu", clock)
    clock.lap("one")
    clock.lap("two")
    heading = Counting("tiny", 1).heading("cpu", clock, resumed=True)
    assert list(heading["seconds_by_stage"]) == ["one", "two"] and heading["resumed"] is True
    assert sum(clock.laps.values()) <= heading["seconds"] + 0.2


# Tables beside the paper's

COLUMNS = ("emp", "dyna", "rand", "mocoda", "mocoda-u")


def results() -> dict[str, Any]:
    """Cells all of whose numbers differ."""
    cells = [
        {
            "row": row,
            "column": column,
            "mean": 1 + r + 10 * c / 7,
            "std": 0.011 * (1 + r + c),
            "paper_mean": None if column == "dyna" else 3.1 + r + c,
        }
        for r, row in enumerate(("full", "global", "local"))
        for c, column in enumerate(COLUMNS)
    ]
    return {"cells": cells}


@pytest.mark.parametrize(("digits", "paper"), [(1, 1), (3, 2)])
def test_the_table_has_every_mean_and_deviation_and_the_paper_s_mean_in_its_place(digits: int, paper: int) -> None:
    console = rich.console.Console(width=220)
    with console.capture() as printed:
        console.print(compare_with_paper(results(), "The title", digits=digits))
    lines = printed.get().splitlines()
    assert "The title" in lines[0] and "over seeds" in lines[-1] and "the paper" in lines[-1]
    for row in ("full", "global", "local"):
        (line,) = (line for line in lines if f" {row} " in line)
        expected = [row]
        for cell in results()["cells"]:
            if cell["row"] == row:
                beside = "" if cell["paper_mean"] is None else f" ({cell['paper_mean']:.{paper}f})"
                expected.append(f"{cell['mean']:.{digits}f} ± {cell['std']:.{digits}f}{beside}")
        assert [text.strip() for text in line.strip("│ ").split("│")] == expected


@pytest.mark.parametrize(
    ("options", "bold"),
    [
        ({}, {("full", c) for c in ("emp", "mocoda", "mocoda-u")} | {("global", "dyna"), ("local", "rand")}),
        ({"best_of": "row"}, {("full", "emp"), ("global", "dyna"), ("local", "emp"), ("local", "rand")}),
        ({"best_of": "row", "more_is_better": True}, {(row, "mocoda-u") for row in ("full", "global", "local")}),
    ],
)
def test_the_best_of_a_column_or_row_is_bold_and_so_are_those_that_share_it(
    options: dict[str, Any], bold: set[tuple[str, str]]
) -> None:
    given = results()
    given["cells"][5 + 1]["mean"] = 0.5  # global, dyna
    given["cells"][10 + 2]["mean"] = given["cells"][10]["mean"]  # local, rand as emp
    table = compare_with_paper(given, "", **options)
    names, *columns = ([str(text) for text in column.cells] for column in table.columns)
    found = {
        (row, column)
        for column, texts in zip(COLUMNS, columns, strict=True)
        for row, text in zip(names, texts, strict=True)
        if text.startswith("[bold]")
    }
    assert found == bold

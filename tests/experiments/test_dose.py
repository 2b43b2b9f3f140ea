"""What agents reach by the dose of generated rows, and what was known before, at a size that takes no time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import experiments.dose.judge
import pytest
import scipy.stats
from experiment_contract import check_experiment, files_in
from experiments.dose.gain import correlations, lines_of, spearman
from experiments.dose.judge import AFTER, BEFORE
from hypothesis import given
from hypothesis import strategies as st

import experiments.dose
import experiments.stages
import mocoda.parents.matching
from experiments import Measured
from experiments.dose import Dose, Trial
from mocoda import DynamicsConfig, InputError, Policies, Transitions, make_agent, train_agents
from mocoda.tasks.hooksweep import HookSweep2
from mocoda.tasks.navigation import Navigation

WALKS = Trial(
    sizes=(120, 200),
    seeds=2,
    dynamics=DynamicsConfig(members=2, hidden=(8,), features=4, epochs=2, epoch_rows=128, batch=64, window=1),
    agents=(make_agent("td3-bc", hidden=(8,), batch=32), make_agent("cql", hidden=(8,), batch=32)),
    updates=20,
    evaluations=2,
    last=1,
    episodes=2,
    components=2,
    judged=100,
)
SWEEPS = replace(
    WALKS, sizes=(150,), seeds=1, agents=WALKS.agents[:1], updates=2, evaluations=1, episodes=1, judged=40, goals=3
)
TINY = Dose("tiny", seeds=2, navigation=WALKS, hooksweep2=SWEEPS, doses=(0.0, 0.5, 3.0))
LINES = [("navigation", agent, size) for agent in ("td3-bc", "cql") for size in (120, 200)]
LINES += [("hooksweep2", "td3-bc", 150)]


class Run(NamedTuple):
    """The results, where they were measured, and the data sets that the agents were given."""

    measured: Measured
    folder: Path
    datasets: dict[str, list[Transitions]]


@pytest.fixture(scope="module", autouse=True)
def small_networks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments.dose.judge, "UPDATES", 3)
        patch.setattr(mocoda.parents.matching, "UPDATES", 3)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("dose")
    datasets: dict[str, list[Transitions]] = {}

    def keep(given: dict[str, list[Transitions]], *agent: Any, **options: Any) -> Policies:
        datasets.update(given)
        return train_agents(given, *agent, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments.stages, "train_agents", keep)
        measured = TINY.run(device="cpu", folder=folder, workers=0)
    return Run(measured, folder, datasets)


def test_the_results_keep_the_contract_and_have_every_cell_and_line(run: Run, tmp_path: Path) -> None:
    printed = check_experiment(TINY, run.measured, tmp_path)
    results = run.measured.results
    assert files_in(tmp_path) == sorted(TINY.outputs) and results["resumed"] is False
    cells = {(c["task"], c["agent"], c["rows"], c["density"], c["dose"]): c for c in results["cells"]}
    assert set(cells) == {
        (*line, density if dose else None, dose) for line in LINES for density in TINY.densities for dose in TINY.doses
    }
    assert len(cells) == len(results["cells"])
    assert all(len(c["values"]) == (2 if c["task"] == "navigation" else 1) for c in cells.values())
    assert all(f"{cell['mean']:.1f}" in printed for cell in cells.values())
    keys = [(line["task"], line["agent"], line["rows"], line["density"]) for line in results["lines"]]
    assert keys == [(*line, density) for line in LINES for density in TINY.densities]
    assert {(c["task"], c["agent"], c["judged"], c["of"]) for c in results["correlations"]} == {
        (*line[:2], judged, of) for line in LINES for judged in (*BEFORE, *AFTER) for of in ("gain", "more")
    }


@pytest.mark.parametrize("density", TINY.densities)
def test_a_dose_begins_with_the_recorded_rows_and_all_of_the_smaller_doses(run: Run, density: str) -> None:
    for size in (*WALKS.sizes, *SWEEPS.sizes):
        for seed in range(1 if size == 150 else 2):
            doses = [run.datasets[f"{size}-recorded"], *(run.datasets[f"{size}-{density}-{d}"] for d in ("0.5", "3"))]
            tables = [tables[seed] for tables in doses]
            for dose, one, other in zip(TINY.doses, tables, tables[1:], strict=False):
                first = size + round(dose * size)
                for name, array in other[:first].arrays().items():
                    assert array.equal(one[:first].arrays()[name]), name
            assert len(tables[-1]) == 4 * size


def test_recorded_rows_alone_are_what_was_recorded(run: Run) -> None:
    for seed in (0, 1):
        walked = Navigation().collect(200, seed=seed)
        alone = run.datasets["200-recorded"][seed]
        assert alone.rows.equal(walked.rows) and alone.next_state.equal(walked.next_state)
    swept = Transitions.load(run.folder / "recorded.hdf5")
    alone = run.datasets["150-recorded"][0]
    assert len(swept) == 150 and alone.rows.equal(swept.rows.repeat(3, 1))


def test_few_rows_are_repeated_with_goals_of_their_own_and_the_rewards_of_these(run: Run) -> None:
    for name, copies in (("150-recorded", 3), ("150-matched-0.5", 2), ("150-matched-3", 1)):
        (table,) = run.datasets[name]
        first = len(table) // copies
        assert table.rows.equal(table.rows[:first].repeat(copies, 1)) and table.goal is not None
        assert len(table.goal.unique(dim=0)) == len(table)
        reward, _ = HookSweep2().label(table.state, table.action, table.next_state, table.goal)
        assert table.reward is not None and table.reward.equal(reward)


def test_densities_draw_other_rows(run: Run) -> None:
    for size in (*WALKS.sizes, *SWEEPS.sizes):
        mixture, matched = (run.datasets[f"{size}-{density}-3"][0].rows[size:] for density in TINY.densities)
        assert not mixture.equal(matched)


def test_what_is_judged_can_be_so(run: Run) -> None:
    judged = run.measured.results["judged"]
    assert len(judged) == 6
    for one in judged:
        assert all(0 <= value <= 1 for name in ("auc", "refuted") for value in one[name]["values"])
        assert all(value > 0 for name in ("disagreement", "relative", "error") for value in one[name]["values"])


def test_the_same_call_takes_everything_from_its_folder_and_measures_the_same(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in (
        (experiments.stages, "fit_dynamics_runs"),
        (experiments.stages, "train_agents"),
        (experiments.dose, "augment"),
        (HookSweep2, "collect"),
    ):
        monkeypatch.setattr(owner, name, lambda *given, **named: pytest.fail("made again"))
    again = TINY.run(device="cpu", folder=run.folder, workers=0).results
    assert again["resumed"] is True
    assert all(again[key] == run.measured.results[key] for key in ("cells", "judged", "lines", "correlations"))


def known(task: str, reached: dict[float, list[float]]) -> dict[str, Any]:
    """The line of one density whose seeds reached this by dose."""
    labels = {"task": task, "agent": "td3-bc", "rows": 9}
    cells = [
        {**labels, "density": "mixture" if dose else None, "dose": dose, "values": values}
        for dose, values in reached.items()
    ]
    judged = {"values": [0.5, 0.6, 0.7]}
    (line,) = lines_of(cells, [{**labels, "density": "mixture", **dict.fromkeys((*BEFORE, *AFTER), judged)}])
    return line


@pytest.mark.parametrize(("task", "sign"), [("hooksweep2", 1), ("navigation", -1)])
def test_gain_and_more_are_positive_where_it_gets_better_and_hurts_says_where_it_gets_worse(
    task: str, sign: int
) -> None:
    success = {0.0: [10.0, 20.0, 30.0], 4.0: [30.0, 40.0, 50.0], 64.0: [19.0, 30.0, 41.0]}
    line = known(task, {dose: [sign * value for value in values] for dose, values in success.items()})
    assert line["gain"]["values"] == [14.5, 15.0, 15.5] and line["more"]["values"] == [-11.0, -10.0, -9.0]
    first, second = line["changes"]
    assert first == {"from": 0.0, "to": 4.0, "better": 20.0, "interval": [20.0, 20.0], "hurts": False}
    assert (second["better"], second["hurts"]) == (-10.0, True)
    half = scipy.stats.t.ppf(0.975, 2) / 3**0.5  # the seeds' standard deviation is 1
    assert second["interval"] == pytest.approx([-10 - half, -10 + half], abs=0.01)


def test_seeds_that_disagree_do_not_say_that_it_hurts() -> None:
    assert not known("hooksweep2", {0.0: [5.0, 5.0, 5.0], 1.0: [0.0, 1.0, 5.1]})["changes"][0]["hurts"]
    assert known("hooksweep2", {0.0: [5.0], 1.0: [0.0]})["changes"][0] == {
        "from": 0.0,
        "to": 1.0,
        "better": -5.0,
        "interval": None,
        "hurts": False,
    }


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=12))
def test_rank_correlations_are_spearman_s(pairs: list[tuple[int, int]]) -> None:
    left, right = zip(*pairs, strict=True)
    found = spearman(pairs)
    if len(pairs) < 3 or len(set(left)) == 1 or len(set(right)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(scipy.stats.spearmanr(left, right).statistic, abs=1e-9)


def test_a_judge_that_knows_beforehand_has_a_rank_correlation_of_minus_one() -> None:
    lines = []
    for number in range(4):
        values = [10.0 - number, 10.2 - number]
        outcome = {"values": values, "mean": sum(values) / 2}
        judges = {key: [float(number), number + 0.1] for key in (*BEFORE, *AFTER)}
        lines.append({"task": "navigation", "agent": "cql", "gain": outcome, "more": outcome, **judges})
    found = correlations(lines)
    assert all(one["rho"] == pytest.approx(-1) and one["points"] == 4 for one in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"doses": (1.0, 4.0)}, "doses must rise from 0, which is the recorded rows alone, got [1.0, 4.0]."),
        ({"doses": (0.0, 4.0, 4.0)}, "doses must rise from 0, which is the recorded rows alone, got [0.0, 4.0, 4.0]."),
        ({"doses": (0.0,)}, "doses must rise from 0, which is the recorded rows alone, got [0.0]."),
        ({"tasks": ("objects",)}, "there is no task 'objects'; there are: navigation, hooksweep2."),
    ],
)
def test_settings_that_cannot_be_are_refused_in_full(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(TINY, **change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": (5, 5)}, "sizes must be different numbers of rows, and at least one, got [5, 5]."),
        (
            {"last": 3},
            "last must be at most the evaluations, and these at most the updates, got 3, 2 and 20.",
        ),
    ],
)
def test_trials_that_cannot_be_are_refused_in_full(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(WALKS, **change)
    assert str(caught.value) == message


def test_the_paper_s_doses_seeds_and_sizes_are_those_of_the_question() -> None:
    paper = Dose.presets["paper"]
    assert list(paper.doses) == [0, 0.25, 1, 4, 16, 64] and list(paper.densities) == ["mixture", "matched"]
    assert list(paper.trial("navigation").sizes) == [1_000, 4_000, 40_000]
    assert [paper.trial(task).seeds for task in paper.tasks] == [5, 3]
    assert [agent.name for agent in paper.navigation.agents] == ["td3-bc", "cql"]

"""Ablations at a size that takes no time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from experiment_contract import by_place, check_experiment

import experiments.stages
from experiments import Measured
from experiments.ablation import STUDIES, Ablation, with_true_next_states
from experiments.table2 import Table2
from experiments.table3 import Table3
from mocoda import DynamicsConfig, InputError, Policies, Transitions, make_agent, train_agents
from mocoda.tasks.navigation import Navigation

SMALL: dict[str, Any] = {"hidden": (8,), "batch": 16}
MODEL = DynamicsConfig(members=2, hidden=(8,), features=8, epochs=1, batch=128, validation=50, window=1)
TINY2 = replace(
    Table2.presets["quick"], preset="tiny", dynamics=MODEL, rows=400, total=900, agents=(make_agent("td3-bc", **SMALL),)
)
TINY3 = replace(
    Table3.presets["quick"],
    preset="tiny",
    dynamics=replace(MODEL, epoch_rows=256),
    rows=600,
    total=900,
    components=4,
    agents=(make_agent("td3-bc", **SMALL),),
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(Table2.presets, "tiny", TINY2)
    monkeypatch.setitem(Table3.presets, "tiny", TINY3)
    yield


def settings(study: str, **changes: Any) -> Ablation:
    return Ablation("tiny", seeds=2, updates=20, evaluate_every=10, last=1, study=study, **changes)


def measure(ablation: Ablation, folder: Path) -> tuple[Measured, list[tuple[Any, dict[str, list[Transitions]]]]]:
    """The results, and what each agent was trained on."""
    trained = []

    def keep(given: dict[str, list[Transitions]], agent: Any, **options: Any) -> Policies:
        trained.append((agent, given))
        assert list(options["seeds"]) == [100, 101]  # no table has these
        return train_agents(given, agent, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments.stages, "train_agents", keep)
        return ablation.run(device="cpu", folder=folder, workers=0), trained


def test_every_variant_is_trained_on_the_same_rows(tmp_path: Path) -> None:
    ablation = settings("table2-td3-bc")
    measured, trained = measure(ablation, tmp_path)
    check_experiment(ablation, measured, tmp_path / "written")
    variants, data = STUDIES["table2-td3-bc"].variants, STUDIES["table2-td3-bc"].data
    assert list(by_place(measured.results)) == [(variant, name) for variant in variants for name in data]
    assert [agent for agent, _ in trained] == [replace(TINY2.agents[0], **changes) for changes in variants.values()]
    assert all(given is trained[0][1] for _, given in trained)


def test_true_next_states_follow_the_same_states_and_actions(tmp_path: Path) -> None:
    _, trained = measure(settings("table2-td3-bc", only=("as in the table",)), tmp_path)
    published, truth = (trained[0][1][name][1] for name in ("published", "true next states"))
    task = Navigation()
    assert truth.rows.equal(published.rows) and truth.next_state.equal(task.step(truth.rows))
    assert truth.reward is not None
    torch.testing.assert_close(truth.reward, task.label(truth.state, truth.action, truth.next_state)[0])
    assert with_true_next_states(task, truth).next_state.equal(truth.next_state)


@pytest.mark.long
def test_sweepers_of_all_seeds_share_the_data_of_a_table_s_first(tmp_path: Path) -> None:
    measured, trained = measure(settings("table3-td3-bc", only=("batch 500",)), tmp_path)
    assert trained[0][0].batch == 500
    for tables in trained[0][1].values():
        assert len(tables) == 2 and tables[0] is tables[1] and len(tables[0]) == TINY3.total
    assert measured.results["measure"] == "success"
    assert {cell["row"] for cell in measured.results["cells"]} == {"batch 500"}


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_has_an_agent_of_the_paper_s_preset_and_fields_that_it_has(study: str) -> None:
    variants = replace(Ablation.presets["paper"], study=study).variants()
    assert {agent.name for agent, _ in variants.values()} == {STUDIES[study].agent}
    assert len({(agent, str(options)) for agent, options in variants.values()}) == len(variants)  # none is another


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"study": "table9"}, f"there is no study 'table9'; there are: {', '.join(STUDIES)}."),
        (
            {"only": ("batch 5",)},
            "there is no variant 'batch 5'; there are: as in the table, standardised, batch 2,000.",
        ),
        ({"last": 3}, "last must be a number of evaluations, from 1 to 2, got 3."),
    ],
)
def test_settings_that_cannot_be_are_refused_in_full(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(settings("table2-td3-bc"), **changes)
    assert str(caught.value).startswith(message)


def test_an_agent_that_a_preset_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        settings("table3-bcq").run(device="cpu", folder=tmp_path)
    assert str(caught.value) == "table3 has no bcq in its preset 'tiny'; pass --preset paper."

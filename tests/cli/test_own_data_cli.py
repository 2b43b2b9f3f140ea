"""Agents and counterfactuals of data that no task of ours knows, by the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mocoda.cli
import mocoda.cli.verbs
import mocoda.dynamics.fit
from mocoda import (
    Dynamics,
    InputError,
    Policies,
    Transitions,
    fit_parents,
    load_graph,
    make_agent,
    train_agents,
    what_if,
    write,
)
from mocoda.cli.data import augment, whatif
from mocoda.dynamics.fit import fit_dynamics_runs
from mocoda.dynamics.model import DynamicsConfig
from mocoda.engine.randomness import Stream
from mocoda.engine.runs import settings_of

GRAPH = """
action = {"drive": "drive", "hoist": "hoist"}
edges = {"cart": ["cart", "drive"], "lift": ["lift", "hoist"]}
"""
COLUMNS = ("cart.place", "lift.height", "drive", "hoist")


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lift.py").write_text(GRAPH)
    rows = Stream(0, "own-data").uniform(300, 4)
    rows[:, 2:] = 3 * rows[:, 2:] - 1.5  # motors that can do more than [-1, 1]
    state, action = rows[:, :2], rows[:, 2:]
    Transitions(state, action, state + 0.1 * action, -state.sum(1), columns=COLUMNS).save("mine.hdf5")

    def small(*given: object, config: DynamicsConfig | None = None, **options: object) -> list[Dynamics]:
        tiny = DynamicsConfig(members=2, hidden=(8,), features=8, epochs=2, batch=64, window=1)
        return fit_dynamics_runs(*given, config=tiny, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(mocoda.dynamics.fit, "fit_dynamics_runs", small)


def train(**more: object) -> None:
    mocoda.cli.verbs.train(["mine.hdf5"], seeds=1, updates=20, hidden=(8,), batch=16, out_dir=Path("agents"), **more)  # type: ignore[arg-type]


def test_agents_of_own_data_are_trained_without_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    train(actions=(-2.0, 2.0))
    assert capsys.readouterr().out.startswith("1 agent in agents; without a task none was evaluated.")
    agent = make_agent("td3-bc", hidden=(8,), batch=16)
    data = {"mine": Transitions.load("mine.hdf5")}
    expected = train_agents(data, agent, seeds=[0], updates=20, actions=(-2, 2))["mine", 0]
    found = Policies.load("agents")["mine", 0]
    assert found.action_low.tolist() == [-2, -2] and found.action_high.tolist() == [2, 2]
    assert all(weight.equal(expected.weights[name]) for name, weight in found.weights.items())


def test_agents_without_a_task_cannot_be_evaluated() -> None:
    train(actions=(-2.0, 2.0))
    with pytest.raises(InputError, match=r"the agents in 'agents' were trained without a task, and there is none to"):
        mocoda.cli.verbs.evaluate(Path("agents"))


def test_actions_beyond_the_unit_box_are_not_guessed() -> None:
    with pytest.raises(InputError, match=r"data set 'mine' has actions outside \[-1, 1\]\. Say which are possible"):
        train()
    assert not Path("agents/agents.json").exists()


def test_a_question_about_own_data_is_answered_by_its_graph_file(capsys: pytest.CaptureFixture[str]) -> None:
    whatif("mine.hdf5", 7, ("cart=0.4",), graph=Path("lift.py"), seed=3, out_dir=Path("asked"))
    said = capsys.readouterr().out
    data = Transitions.load("mine.hdf5")
    graph = load_graph("lift.py", data)
    model = Dynamics.load(Path("asked/dynamics.safetensors"), graph)
    answer = what_if(
        data[7:8],
        {"cart": torch.tensor([0.4])},
        parents=fit_parents(data, graph, seed=3),
        model=model,
        graph=graph,
        data=data,
        seed=3,
    )
    assert answer.resampled.tolist() == [[True, False]]  # the lift's next height is kept
    assert cells(said) == cells(str(answer))


def cells(table: str) -> list[list[str]]:
    """What stands in the rows of a table, however wide it is."""
    return [[cell.strip() for cell in line.split("│")] for line in table.splitlines() if line.startswith("│")]


def test_a_second_question_asks_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = ("mine.hdf5", 7)
    whatif(*ask, ("cart=0.4",), graph=Path("lift.py"), out_dir=Path("asked"))
    monkeypatch.setattr(mocoda.dynamics.fit, "fit_dynamics_runs", lambda *given, **named: pytest.fail("trained again"))
    whatif(*ask, ("lift=0.3",), graph=Path("lift.py"), stratified=True, out_dir=Path("asked"))


def test_a_stratified_question_is_judged_by_stratified_mixtures() -> None:
    with pytest.raises(InputError, match="resample draws from mixtures of all the data"):
        whatif("mine.hdf5", 7, ("cart=0.4",), resample=("hoist",), graph=Path("lift.py"), stratified=True)


def test_another_graph_trains_anew() -> None:
    whatif("mine.hdf5", 7, ("cart=0.4",), graph=Path("lift.py"), least_support=0, out_dir=Path("asked"))
    before = Path("asked/dynamics.safetensors").read_bytes()
    Path("lift.py").write_text(GRAPH.replace('["lift", "hoist"]', '["lift", "hoist", "cart"]'))
    whatif("mine.hdf5", 7, ("cart=0.4",), graph=Path("lift.py"), least_support=0, out_dir=Path("asked"))
    assert Path("asked/dynamics.safetensors").read_bytes() != before


def test_a_model_serves_other_recipes_and_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    common = {"graph": Path("lift.py"), "rows": 50, "reward": "none", "seed": 3}
    augment("mine.hdf5", **common, out_file=Path("one.hdf5"))  # type: ignore[arg-type]
    augment("mine.hdf5", **common, recipe="rand", out_file=Path("alone.hdf5"))  # type: ignore[arg-type]
    monkeypatch.setattr(mocoda.dynamics.fit, "fit_dynamics_runs", lambda *given, **named: pytest.fail("trained again"))
    run = Path("one.hdf5.run")
    augment("mine.hdf5", **common, recipe="rand", model=run, out_file=Path("other.hdf5"))  # type: ignore[arg-type]
    alone, other = Transitions.load("alone.hdf5"), Transitions.load("other.hdf5")
    assert other.rows.equal(alone.rows) and other.next_state.equal(alone.next_state)
    assert not Path("other.hdf5.run/dynamics.safetensors").exists()
    whatif("mine.hdf5", 7, ("cart=0.4",), graph=Path("lift.py"), model=run, out_dir=Path("asked"))
    assert not Path("asked").exists()
    model = run / "dynamics.safetensors"
    whatif("mine.hdf5", 7, ("cart=0.4",), graph=Path("lift.py"), model=model, out_dir=Path("asked"))


def test_other_weights_of_a_model_make_other_rows() -> None:
    common = {"graph": Path("lift.py"), "rows": 50, "reward": "none"}
    for seed in (0, 1):
        augment("mine.hdf5", **common, seed=seed, out_file=Path(f"{seed}.hdf5"))  # type: ignore[arg-type]
    asked = {"model": Path("model.safetensors"), "out_file": Path("out.hdf5")}
    made, runs = [], []
    for seed in (0, 1):
        Path("model.safetensors").write_bytes(Path(f"{seed}.hdf5.run/dynamics.safetensors").read_bytes())
        augment("mine.hdf5", **common, **asked)  # type: ignore[arg-type]
        made.append(Transitions.load("out.hdf5"))
        runs.append(settings_of("out.hdf5.run"))
    assert made[0].rows.equal(made[1].rows) and not made[0].next_state.equal(made[1].next_state)
    assert runs[0] != runs[1]  # or an unfinished file would go on with the other's rows


def test_agents_are_trained_on_data_in_other_formats() -> None:
    data = Transitions.load("mine.hdf5")
    write(data, "d4rl:theirs.hdf5")
    write(data, "table.parquet")
    options = {"seeds": 1, "updates": 20, "hidden": (8,), "batch": 16, "actions": (-2.0, 2.0)}
    mocoda.cli.verbs.train(["mine.hdf5", "d4rl:theirs.hdf5", "table.parquet"], **options, out_dir=Path("agents"))  # type: ignore[arg-type]
    policies = Policies.load("agents")
    assert list(policies) == [("mine", 0), ("theirs", 0), ("table", 0)]
    for key in policies:
        assert all(weight.equal(policies["mine", 0].weights[name]) for name, weight in policies[key].weights.items())

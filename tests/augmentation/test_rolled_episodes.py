"""Episodes of recipe "mocoda": drawn starts, recorded actions, and what the model says, as far as support reaches."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transition_tables import refusal, walks

from mocoda import LocalGraph, Transitions, augment_episodes, make_recipe, make_task
from mocoda.augmentation.episode_walks import ENDED, LONG
from mocoda.augmentation.support import DISPUTED, RARE, RARE_SHARE, UNSEEN
from mocoda.dynamics import Prediction
from mocoda.engine.randomness import Stream
from mocoda.parents.groups import neighbourhood

DATA = {name: make_task(name).collect(rows, seed=0) for name, rows in (("navigation", 900), ("objects:3", 4_000))}
MATCHED = make_recipe("mocoda", density="matched", stratified=True)
MIXTURE = make_recipe("mocoda", density="mixture", stratified=False, project=False)
quick = settings(max_examples=5, deadline=None)


class Step:
    """A model that is a function of rows."""

    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
        self.step = step

    def sample(self, rows: Tensor, *, seed: int | Stream) -> Tensor:
        return self.step(rows)


def truth(name: str) -> Step:
    return Step(make_task(name).step)


def made_of(name: str, **options: Any) -> Transitions:
    usual: dict[str, Any] = {"recipe": MATCHED, "model": truth(name), "episodes": 30, "keep_recorded": False}
    return augment_episodes(DATA[name], make_task(name).graph, **(usual | options))


@cache
def usual(name: str) -> Transitions:
    return made_of(name)


# --- the law


@quick
@given(
    st.sampled_from(["navigation", "objects:3"]),
    st.integers(0, 10**6),
    st.sampled_from([None, 2, 7]),
    st.sampled_from(["matched", "mixture"]),
)
def test_with_a_true_model_the_simulator_does_the_same_to_the_last_step(
    name: str, seed: int, length: int | None, density: str
) -> None:
    task: Any = make_task(name)
    made = made_of(name, recipe=make_recipe("mocoda", density=density), seed=seed, length=length)
    assert len(walks(made)) == 30
    for rows in walks(made).values():
        episode = made[rows]
        assert 2 <= len(episode) <= (length or 50)
        state = episode.state[:1]
        for step in range(len(episode)):
            assert state.equal(episode.state[step : step + 1])
            state = task.step(torch.cat([state, episode.action[step : step + 1]], 1))
        assert state.equal(episode.next_state[-1:])


@pytest.mark.parametrize("name", ["navigation", "objects:3"])
def test_actions_are_those_of_recorded_steps_that_follow_one_another(name: str) -> None:
    data, graph, made = DATA[name], make_task(name).graph, usual(name)
    assert data.episode is not None and data.step is not None
    where = {place: row for row, place in enumerate(zip(data.episode.tolist(), data.step.tolist(), strict=True))}
    for factor in graph.parents:
        columns = list(graph.factors[factor])
        donors, steps = (made.provenance[f"{note}_{factor}"] for note in ("donor", "donor_step"))
        known = donors >= 0
        origin = [where[place] for place in zip(donors[known].tolist(), steps[known].tolist(), strict=True)]
        assert made.rows[known][:, columns].equal(data.rows[origin][:, columns])
        assert made.step is not None
        assert float(known[made.step == 0].float().mean()) > 0.8  # an episode's last step, which has no next, is not
        if factor in graph.action:
            assert bool(known.all())
            for rows in walks(made).values():
                assert len(donors[rows].unique()) == 1 and bool((steps[rows].diff() == 1).all())


def test_actions_suit_what_they_act_on() -> None:
    """Of matched parents each set is a recorded one: its actions are those that were taken from there on."""
    made = usual("navigation")
    assert made.step is not None
    first = made[made.step.eq(0)]
    for state, action in (("x", "dx"), ("y", "dy")):
        known = first.provenance[f"donor_{state}"] >= 0
        for note in ("donor", "donor_step"):
            assert first.provenance[f"{note}_{state}"][known].equal(first.provenance[f"{note}_{action}"][known])
    assert not first.provenance["donor_x"].equal(first.provenance["donor_y"])


def test_the_model_is_asked_only_what_no_recorded_row_answers() -> None:
    """A model that is always wrong by 0.01 changes nothing as long as x and dx are of one recorded row."""
    data, graph = walk_about()
    wrong = Step(lambda rows: rows[:, :2] + rows[:, 2:] + 0.01)
    made = augment_episodes(data, graph, recipe=MATCHED, model=wrong, episodes=40, keep_recorded=False)
    notes = made.provenance
    for column, (state, action) in enumerate((("x", "dx"), ("y", "dy"))):
        known = (notes[f"donor_{state}"] >= 0) & (notes[f"donor_step_{state}"] == notes[f"donor_step_{action}"])
        off = (made.next_state - made.state - made.action)[:, column].abs()
        assert float(known.float().mean()) > 0.8 and float(off[known].max()) < 1e-6
        assert bool(((off[~known] - 0.01).abs() < 1e-6).all())


def test_a_model_that_ignores_the_graph_is_asked_for_everything() -> None:
    data, graph = walk_about()
    wrong = Step(lambda rows: rows[:, :2] + rows[:, 2:] + 0.01)
    wrong.architecture = "full"  # type: ignore[attr-defined]
    made = augment_episodes(data, graph, recipe=MATCHED, model=wrong, episodes=40, keep_recorded=False)
    assert bool(((made.next_state - made.state - made.action - 0.01).abs() < 1e-6).all())


# --- how far


@pytest.mark.parametrize("name", ["navigation", "objects:3"])
def test_every_row_is_supported_and_the_next_one_is_not(name: str) -> None:
    data, graph = DATA[name], make_task(name).graph
    made = augment_episodes(data, graph, recipe=MATCHED, model=truth(name), episodes=60)
    new = made[len(data) :]
    assert float(new.provenance["support"].min()) >= RARE_SHARE
    recorded = neighbourhood(graph, data.rows).unique()
    assert bool(torch.isin(neighbourhood(graph, new.rows), recorded).all())
    assert new.provenance["neighbourhood"].equal(neighbourhood(graph, new.rows))
    cut, ends = new.provenance["cut"], [int(rows[-1]) for rows in walks(new).values()]
    for why, one in new.source["cut"].items():
        assert one["episodes"] == int((cut[ends] == int(why)).sum())
    least = float(made[: len(data)].provenance["support"].quantile(0.01))
    assert least < 0.05  # recorded rows are judged alike


def walk_about(episodes: int = 40, steps: int = 25) -> tuple[Transitions, LocalGraph]:
    """Steps in a unit square; x and y are never both above 0.5."""
    stream = Stream(0, "walks")
    place, rows = stream.uniform(episodes, 2) * torch.tensor([1.0, 0.5]), []
    for _ in range(steps):
        move = stream.uniform(episodes, 2, low=-0.1, high=0.1)
        high = torch.where(place[:, :1] > 0.5, 0.5, 1.0)
        following = torch.cat(
            [(place[:, :1] + move[:, :1]).clamp(0, 1), (place[:, 1:] + move[:, 1:]).clamp(0).minimum(high)], 1
        )
        following = torch.where((following > 0.5).all(1, keepdim=True), place, following)
        rows.append(torch.cat([place, following - place, following], 1))
        place = following
    table = torch.stack(rows, 1).flatten(0, 1)
    graph = LocalGraph({"x": 0, "y": 1}, {"dx": 0, "dy": 1}, {"x": ["x", "dx"], "y": ["y", "dy"]})
    episode = torch.arange(episodes).repeat_interleave(steps)
    return Transitions(table[:, :2], table[:, 2:4], table[:, 4:], episode=episode), graph


def test_a_model_that_drifts_is_stopped_where_the_data_ends() -> None:
    data, graph = walk_about()
    drift = Step(lambda rows: rows[:, :2] + rows[:, 2:] + torch.tensor([0.2, 0.0]))
    made = augment_episodes(data, graph, recipe=MIXTURE, model=drift, episodes=50, keep_recorded=False)
    assert float(made.state[:, 0].max()) < 1.2 and float(made.next_state[:, 0].max()) > 1.0
    assert made.source["cut"][str(RARE)]["episodes"] >= 35
    assert max(len(rows) for rows in walks(made).values()) <= 7
    assert float((made.next_state - made.state - made.action)[:, 0].min()) > 0.19  # of mixtures nothing is recorded
    lost = Step(lambda rows: torch.where(rows[:, :1] > 0.5, float("inf"), rows[:, :2] + rows[:, 2:]))
    made = augment_episodes(data, graph, recipe=MIXTURE, model=lost, episodes=20, keep_recorded=False)
    assert float(made.state[:, 0].max()) <= 0.5 and made.source["cut"][str(RARE)]["episodes"] > 0


class Doubtful(Step):
    """Two members that differ where x and y are both above 0.5, and are right together."""

    def __init__(self, graph: LocalGraph) -> None:
        super().__init__(lambda rows: rows[:, :2] + rows[:, 2:])
        self.graph = graph

    def predict(self, rows: Tensor) -> Prediction:
        next_state = self.step(rows)
        apart = torch.where((rows[:, :2] > 0.5).all(1, keepdim=True), 0.5, 0.0)
        return Prediction(torch.stack([next_state - apart, next_state + apart]), torch.ones(2, *next_state.shape))


def test_members_that_disagree_stop_an_episode() -> None:
    data, graph = walk_about()
    bold = augment_episodes(data, graph, recipe=MIXTURE, model=Doubtful(graph), episodes=60, keep_recorded=False)
    alone = augment_episodes(
        data, graph, recipe=MIXTURE, model=Step(Doubtful(graph).step), episodes=60, keep_recorded=False
    )
    assert bool((alone.state > 0.5).all(1).any())  # as far as support goes, there is nothing wrong with it
    assert not bool((bold.state > 0.5).all(1).any())
    assert bold.source["cut"][str(DISPUTED)]["episodes"] > 0
    assert bold.next_state.allclose(bold.state + bold.action)  # the mean of the members


def test_a_local_graph_that_was_never_recorded_ends_an_episode() -> None:
    data, plain = walk_about()

    def local(rows: Tensor) -> Tensor:
        mask = plain.sparsest.repeat(len(rows), 1, 1)
        mask[:, 0, 1] = (rows[:, :2] > 0.51).all(1)
        return mask

    graph = LocalGraph(plain.state, plain.action, plain.edges, local)
    step = Step(lambda rows: rows[:, :2] + rows[:, 2:])
    made = augment_episodes(data, graph, recipe=MIXTURE, model=step, episodes=60, keep_recorded=False)
    assert not bool((made.state > 0.51).all(1).any()) and made.source["cut"][str(UNSEEN)]["episodes"] > 0


def test_length_is_the_most_steps_and_actions_end_where_their_episode_does() -> None:
    made = made_of("objects:3", length=5, episodes=80)
    cut, lengths = zip(
        *((int(made.provenance["cut"][rows[0]]), len(rows)) for rows in walks(made).values()), strict=True
    )
    assert max(lengths) == 5 and all(n == 5 for why, n in zip(cut, lengths, strict=True) if why == LONG)
    assert cut.count(LONG) > 40
    for rows in walks(usual("objects:3")).values():
        notes = usual("objects:3").provenance
        if int(notes["cut"][rows[-1]]) == ENDED:
            assert int(notes["donor_step_move"][rows[-1]]) == 49


# --- the table


def test_names_that_are_no_words_are_noted_by_words() -> None:
    data, graph = walk_about()
    graph = LocalGraph({"the x": 0, "y": 1}, {"dx": 0, "dy": 1}, {"the x": ["the x", "dx"], "y": ["y", "dy"]})
    step = Step(lambda rows: rows[:, :2] + rows[:, 2:])
    made = augment_episodes(data, graph, recipe=MIXTURE, model=step, episodes=2)
    assert {"donor_the_x", "donor_step_the_x"} < set(made.provenance)


# --- bad input


def test_what_makes_no_episodes_is_refused() -> None:
    data, graph = walk_about()
    assert refusal(lambda: made_of("navigation", model=None)) == (
        "recipe 'mocoda' asks a model what is next; pass model=mocoda.fit_dynamics(data, graph), or use recipe 'coda', "
        "which needs none."
    )
    assert refusal(lambda: made_of("navigation", recipe="emp")) == (
        "recipe 'emp' makes rows and no episodes; use 'coda', which exchanges parts of episodes, or one that needs a "
        "model, such as 'mocoda'."
    )
    message = refusal(lambda: made_of("navigation", recipe=MIXTURE, model=Step(lambda rows: rows)))
    assert re.fullmatch(r"model\.sample must return next states of shape \((\d+), 2\), got \(\1, 4\)\.", message)
    away = Step(lambda rows: rows[:, :2] + 100)
    assert refusal(lambda: augment_episodes(data, graph, recipe=MIXTURE, model=away, episodes=3)) == (
        "recipe 'mocoda' found 0 of 3 episodes in 21,118 starts: nearly all leave what was recorded within 2 steps. "
        "Does `mocoda check` find that the model and the graph fit the data?"
    )
    few = data[:60]
    assert refusal(lambda: augment_episodes(few, graph, recipe=MIXTURE, model=away, episodes=3)) == (
        "every group of connected factors has fewer than 50 rows in one half of the episodes, so that nothing tells "
        "where support ends; record more."
    )

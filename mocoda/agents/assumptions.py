"""What training assumes about data of no known task, in sentences that tell the user how to change it."""

from __future__ import annotations

import re

from mocoda.agents.agent import Agent
from mocoda.agents.goals import ACHIEVED, TOLERANCE, achieved_by
from mocoda.agents.train import Range, Run, action_range
from mocoda.data.kinds import one_hot_groups
from mocoda.data.transitions import Transitions

MAX_LISTED = 3  # up to this many different rewards are listed one by one


def assumptions(name: str, data: Transitions, agent: Agent, actions: Range | None = None) -> list[str]:
    """Says how an agent interprets the actions, goals, terminals and rewards of data, and how to change that."""
    if agent.goals_from_episodes:
        return [_actions(name, data, actions), episode_goals(data)]
    goals = "there are no goals: agents see the state alone"
    if data.goal is not None:
        goals = f"goals are as recorded: agents see their {data.goal.shape[1]} columns after those of the state"
    terminals = (
        "no row is terminal: values go on after an episode's last row, and after a success; mark rows as terminal "
        "where nothing is to be gained any more"
    )
    if ends := int(data.terminal.sum()):
        terminals = f"{ends:,} of {len(data):,} rows are terminal: nothing is to be gained after them"
    return [_actions(name, data, actions), goals, terminals, _values(data, agent)]


def _actions(name: str, data: Transitions, given: Range | None) -> str:
    low, high = action_range([Run(name, 0, data)], None, given)
    ends = sorted({f"[{first:.4g}, {last:.4g}]" for first, last in zip(low.tolist(), high.tolist(), strict=True)})
    possible = f"actions may lie anywhere in {' or '.join(ends)}"
    outside = float(((data.action < low) | (data.action > high)).any(1).double().mean())
    if outside:
        return f"{possible}; {outside:.1%} of the rows have others, but agents' actions never will"
    least, most = map(float, data.action.aminmax())
    if any(column >= data.state.shape[1] for group in one_hot_groups(data) for column in group):
        possible = (
            "some columns of the action are one-hot: agents give a number for each, of which an environment with "
            f"Discrete actions gets the place of the largest; {possible}"
        )
    return f"{possible} (recorded: {least:.3g} to {most:.3g}); `--actions LOW HIGH` says otherwise"


def episode_goals(data: Transitions) -> str:
    """Says what the goals of an agent are about that takes them from episodes, and recommends to name what counts."""
    achieved_by(None, data)  # raises for columns that do not exist
    names, distance = data.source.get(ACHIEVED), data.source.get(TOLERANCE)
    states = data.columns[: data.state.shape[1]]
    if names:
        about = f"the columns {', '.join(names)}"
    else:
        places = [name for name in states if re.search(r"(^|[._])[xyz]$", name)] or states
        about = (
            f"all {len(states)} columns of the state. Name those that count, such as `--achieved "
            f"{' '.join(places[:MAX_LISTED])} --tolerance 0.05`: agents then need not bring the others to the same "
            "values, too, and reach goals far more often"
        )
    near = f"a goal is reached within {distance:g} of it" if distance else "only equal numbers reach a goal"
    unless = "" if distance else ", unless `--tolerance DISTANCE` lets near ones count"
    return (
        f"goals are drawn from the data's own states and are about {about}; {near}{unless}; recorded goals, rewards "
        "and terminals are not used"
    )


def _values(data: Transitions, agent: Agent) -> str:
    assert data.reward is not None
    values, counts = data.reward.unique(return_counts=True)
    rewards = f"rewards lie between {float(values[0]):.4g} and {float(values[-1]):.4g}"
    if len(values) <= MAX_LISTED:
        each = (
            f"{value:.4g} ({count / len(data):.1%})"
            for value, count in zip(values.tolist(), counts.tolist(), strict=True)
        )
        rewards = f"rewards are {', '.join(each)}"
    if agent.value_range is not None:
        low, high = agent.value_range
        return f"{rewards}; targets of values are clipped to [{low:.4g}, {high:.4g}], as you say"
    if agent.discount == 1:
        return f"{rewards}; without a discount values have no bounds, unless `--value-range LOW HIGH` gives them"
    weight = 1 - agent.discount * (1 - data.terminal.double())
    low, high = (float(end) for end in (data.reward.double() / weight).aminmax())
    return (
        f"{rewards}: with a discount of {agent.discount:g} values lie between {low:.4g} and {high:.4g}; they are not "
        "clipped unless `--value-range LOW HIGH` asks for it"
    )

"""The paper's agents: its range of values, its penalty, and rewards as they are, in every preset."""

from __future__ import annotations

import pytest
from experiments.agents import paper_agent

from experiments.scarcity import Scarcity
from experiments.table2 import Table2
from experiments.table3 import Table3
from mocoda import Agent, make_agent
from mocoda.agents import CQL
from mocoda.agents.agent import AGENTS


@pytest.mark.parametrize("name", AGENTS)
def test_the_papers_agents_clip_values_to_its_range_and_learn_rewards_as_they_are(name: str) -> None:
    agent = paper_agent(name)
    assert agent.value_range == ((-40.0, 0.0) if name == "cql" else (-50.0, 0.0)) and not agent.scale_rewards
    assert not isinstance(agent, CQL) or (agent.penalty, agent.weight) == ("l1", 0.1)
    assert paper_agent(name, value_range=None, scale_rewards=True, hidden=(3,)).hidden == (3,)


def test_every_preset_uses_them() -> None:
    agents: list[Agent] = []
    for preset in ("paper", "quick"):
        second, third = Table2.presets[preset], Table3.presets[preset]
        agents += [*second.agents, *third.agents, Scarcity.presets[preset].agent]
    assert len(agents) > 6
    for agent in agents:
        assert (agent.value_range, agent.scale_rewards) == (paper_agent(agent.name).value_range, False)
        assert agent.value_range != make_agent(agent.name).value_range

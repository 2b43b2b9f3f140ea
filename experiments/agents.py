"""The paper's agents: those of `mocoda.agents` with the settings that the paper's tables were trained with."""

from __future__ import annotations

from typing import Any

from mocoda.agents import Agent
from mocoda.agents.agent import make_agent


def paper_agent(name: str, **settings: Any) -> Agent:
    """Makes an agent that learns from rewards as they are, with targets clipped to the paper's range.

    Every task of the paper gives -1 per step and 0 at the goal.
    """
    paper: dict[str, Any] = {"value_range": (-50.0, 0.0), "scale_rewards": False}
    if name == "cql":
        paper |= {"value_range": (-40.0, 0.0), "penalty": "l1", "weight": 0.1}
    return make_agent(name, **(paper | settings))

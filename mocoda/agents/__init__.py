"""names -> Agent: the algorithms, which differ in what they descend and how they act, and in nothing else."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from mocoda.agents.agent import Agent, Batch, Network, Stage
from mocoda.agents.bcq import BCQ
from mocoda.agents.cql import CQL
from mocoda.agents.sac import SAC
from mocoda.agents.td3_bc import TD3BC
from mocoda.files import unknown_name

__all__ = ["AGENTS", "BCQ", "CQL", "SAC", "TD3BC", "Agent", "Batch", "Network", "Stage", "make_agent"]

AGENTS: dict[str, type[Agent]] = {kind.name: kind for kind in (TD3BC, BCQ, CQL, SAC)}


def make_agent(name: str, **settings: Any) -> Agent:
    """The agent called `name`, with the paper's settings for 2D Navigation but for those given."""
    if name not in AGENTS:
        raise unknown_name("agent", name, AGENTS)
    known = [field.name for field in fields(AGENTS[name])]
    for setting in settings:
        if setting not in known:
            raise unknown_name(f"setting of {name}", setting, known)
    return AGENTS[name](**settings)

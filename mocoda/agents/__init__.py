"""Step 3: agents that learn from the longer table, and how well they do.

One file an algorithm; they differ in what they descend and how they act, and in nothing else.
"""

from mocoda.agents.agent import AGENTS, Agent, Batch, Network, Stage, make_agent
from mocoda.agents.bcq import BCQ
from mocoda.agents.contract import check_agent
from mocoda.agents.cql import CQL
from mocoda.agents.evaluation import Evaluation, evaluate
from mocoda.agents.policy import Policies, Policy
from mocoda.agents.sac import SAC
from mocoda.agents.td3_bc import TD3BC
from mocoda.agents.train import train_agents

__all__ = [
    "AGENTS",
    "BCQ",
    "CQL",
    "SAC",
    "TD3BC",
    "Agent",
    "Batch",
    "Evaluation",
    "Network",
    "Policies",
    "Policy",
    "Stage",
    "check_agent",
    "evaluate",
    "make_agent",
    "train_agents",
]

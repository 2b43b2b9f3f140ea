"""Step 3: offline RL agents that learn from the augmented data, and their evaluation.

Each algorithm has one file. They differ in their networks, their losses and how they act, and in nothing else.
"""

from mocoda.agents.agent import AGENTS, Agent, Batch, Network, Stage, make_agent
from mocoda.agents.battery import check_agent
from mocoda.agents.bcq import BCQ
from mocoda.agents.cql import CQL
from mocoda.agents.evaluation import Evaluation, evaluate, evaluate_each
from mocoda.agents.gciql import GCIQL
from mocoda.agents.goals import GoalShares
from mocoda.agents.policy import Policies, Policy
from mocoda.agents.sac import SAC
from mocoda.agents.td3_bc import TD3BC
from mocoda.agents.train import train_agents

for _kind in (TD3BC, BCQ, CQL, SAC, GCIQL):  # in this order, they are listed
    AGENTS.add(_kind)

__all__ = [
    "AGENTS",
    "BCQ",
    "CQL",
    "GCIQL",
    "SAC",
    "TD3BC",
    "Agent",
    "Batch",
    "Evaluation",
    "GoalShares",
    "Network",
    "Policies",
    "Policy",
    "Stage",
    "check_agent",
    "evaluate",
    "evaluate_each",
    "make_agent",
    "train_agents",
]

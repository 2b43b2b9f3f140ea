"""Step 3: offline RL agents that learn from the augmented data, and their evaluation.

Each algorithm has one file, which defines its networks, its losses and how it acts.
"""

from mocoda.agents.agent import AGENTS, Agent, Batch, Network, Stage, make_agent
from mocoda.agents.agent_contract import check_agent
from mocoda.agents.bcq import BCQ
from mocoda.agents.cql import CQL
from mocoda.agents.dqc import DQC
from mocoda.agents.evaluation import Evaluation, evaluate
from mocoda.agents.gciql import GCIQL
from mocoda.agents.goals import GoalShares
from mocoda.agents.policy import Policies, Policy
from mocoda.agents.sac import SAC
from mocoda.agents.td3_bc import TD3BC
from mocoda.agents.train import train_agents

for _kind in (TD3BC, BCQ, CQL, SAC, GCIQL, DQC):
    AGENTS.add(_kind)

__all__ = [
    "AGENTS",
    "BCQ",
    "CQL",
    "DQC",
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
    "make_agent",
    "train_agents",
]

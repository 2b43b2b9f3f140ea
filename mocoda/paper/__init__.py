"""Every table and figure of the paper, one file an experiment, and the benchmarks."""

from mocoda.paper.ablation import Ablation
from mocoda.paper.audit import CubesAudit, HookSweepAudit, NavigationAudit, ObjectsAudit
from mocoda.paper.composer import Composer
from mocoda.paper.cubes import CubesTable
from mocoda.paper.dose import Dose
from mocoda.paper.entanglement import Entanglement
from mocoda.paper.experiment import EXPERIMENTS, Experiment, Measured, find_experiment, run_experiment
from mocoda.paper.learned_masks import LearnedMasks
from mocoda.paper.masks.experiment import Masks
from mocoda.paper.neighbourhoods import Neighbourhoods
from mocoda.paper.proposals import Proposals
from mocoda.paper.rewards import Rewards
from mocoda.paper.reweighting import Reweighting
from mocoda.paper.scale import Scale
from mocoda.paper.scarcity import Scarcity
from mocoda.paper.table1 import Table1
from mocoda.paper.table2 import Table2
from mocoda.paper.table3 import Table3
from mocoda.paper.theory import Theory
from mocoda.paper.whatif import WhatIfs

__all__ = ["EXPERIMENTS", "Experiment", "Measured", "find_experiment", "run_experiment"]

for _kind in (
    Table1,
    Table2,
    Table3,
    Scarcity,
    Theory,
    Neighbourhoods,
    Reweighting,
    WhatIfs,
    Composer,
    Entanglement,
    Rewards,
    Ablation,
    Proposals,
    Dose,
    CubesTable,
    Masks,
    LearnedMasks,
    NavigationAudit,
    ObjectsAudit,
    HookSweepAudit,
    CubesAudit,
    Scale,
):
    EXPERIMENTS.add(_kind)

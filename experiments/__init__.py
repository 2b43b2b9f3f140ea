"""Every table and figure of the paper, one file an experiment, and the benchmarks."""

from experiments.ablation import Ablation
from experiments.audit import CubesAudit, HookSweepAudit, NavigationAudit, ObjectsAudit
from experiments.composer import Composer
from experiments.cubes import CubesTable
from experiments.dose import Dose
from experiments.entanglement import Entanglement
from experiments.experiment import EXPERIMENTS, Experiment, Measured, find_experiment, run_experiment
from experiments.learned_masks import LearnedMasks
from experiments.masks.experiment import Masks
from experiments.neighbourhoods import Neighbourhoods
from experiments.proposals import Proposals
from experiments.rewards import Rewards
from experiments.reweighting import Reweighting
from experiments.scale import Scale
from experiments.scarcity import Scarcity
from experiments.table1 import Table1
from experiments.table2 import Table2
from experiments.table3 import Table3
from experiments.theory import Theory
from experiments.whatif import WhatIfs

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

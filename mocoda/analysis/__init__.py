"""Questions about data: is the graph right, which recipe is worth trying, what would have happened if, what is true?"""

from mocoda.analysis.counterfactual import WhatIf, what_if
from mocoda.analysis.graph_check import Advice, check
from mocoda.analysis.page import report
from mocoda.analysis.row_audit import Audit, audit
from mocoda.analysis.scores import Scores, score_rows
from mocoda.analysis.step_check import StepCheck, check_step

__all__ = [
    "Advice",
    "Audit",
    "Scores",
    "StepCheck",
    "WhatIf",
    "audit",
    "check",
    "check_step",
    "report",
    "score_rows",
    "what_if",
]

"""Questions about data: is the graph right, which recipe is worth trying, what would have happened if, what is true?"""

from mocoda.analysis.advice import Advice
from mocoda.analysis.audit import Audit, audit
from mocoda.analysis.counterfactual import WhatIf, what_if
from mocoda.analysis.graph_check import check
from mocoda.analysis.two_sample import TwoSample, two_sample

__all__ = ["Advice", "Audit", "TwoSample", "WhatIf", "audit", "check", "two_sample", "what_if"]

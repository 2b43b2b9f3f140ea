"""Questions about data: is the graph right, which recipe is worth trying, and what would have happened if?"""

from mocoda.analysis.advice import Advice
from mocoda.analysis.counterfactual import WhatIf, what_if
from mocoda.analysis.graph_check import check

__all__ = ["Advice", "WhatIf", "check", "what_if"]

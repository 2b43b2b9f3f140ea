"""The exam of local masks: methods that score edges, one file each, worlds with true edges, and measures."""

from experiments.masks.attention import Attention
from experiments.masks.cai import ActionInfluence
from experiments.masks.code_book import CodeBook
from experiments.masks.drop_one import DropOne
from experiments.masks.gradient import Gradient
from experiments.masks.heuristics import Dense, Distance, Given, Moved, Sparsest
from experiments.masks.learned import Learned
from experiments.masks.mechanisms import Training
from experiments.masks.method import METHODS, Method, NotApplicableError, Scores
from experiments.masks.null_test import NullTest
from experiments.masks.redrawn import Redrawn

__all__ = ["METHODS", "Method", "NotApplicableError", "Scores", "Training"]

for _kind in (
    Learned,
    Gradient,
    DropOne,
    Redrawn,
    Attention,
    ActionInfluence,
    CodeBook,
    NullTest,
    Distance,
    Moved,
    Given,
    Dense,
    Sparsest,
):
    METHODS.add(_kind)

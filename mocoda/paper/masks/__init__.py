"""The exam of local masks: methods that score edges, one file each, worlds with true edges, and measures."""

from mocoda.paper.masks.attention import Attention
from mocoda.paper.masks.cai import ActionInfluence
from mocoda.paper.masks.code_book import CodeBook
from mocoda.paper.masks.drop_one import DropOne
from mocoda.paper.masks.gradient import Gradient
from mocoda.paper.masks.heuristics import Dense, Distance, Given, Moved, Sparsest
from mocoda.paper.masks.learned import Learned
from mocoda.paper.masks.mechanisms import Training
from mocoda.paper.masks.method import METHODS, Method, NotApplicableError, Scores
from mocoda.paper.masks.null_test import NullTest
from mocoda.paper.masks.redrawn import Redrawn

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

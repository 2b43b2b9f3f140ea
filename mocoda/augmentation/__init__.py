"""Steps 1 and 2 together: new rows, labelled with the task's reward, after the recorded ones."""

from mocoda.augmentation.episodes import augment_episodes
from mocoda.augmentation.generation import Augmentation, augment, follows_recorded
from mocoda.augmentation.more_objects import add_objects
from mocoda.augmentation.rewards import GoalsOf, LearnedReward, RewardConfig, fit_reward, label
from mocoda.augmentation.streaming import augment_to_file, augment_to_shards
from mocoda.augmentation.support import Support, disagreement, fit_support

__all__ = [
    "Augmentation",
    "GoalsOf",
    "LearnedReward",
    "RewardConfig",
    "Support",
    "add_objects",
    "augment",
    "augment_episodes",
    "augment_to_file",
    "augment_to_shards",
    "disagreement",
    "fit_reward",
    "fit_support",
    "follows_recorded",
    "label",
]

"""How arrays are called, in tables, in files of ours and in those of others."""

EPISODES = ("episode", "step")  # which row is which; rows are complete without
ARRAYS = ("state", "action", "reward", "next_state", "terminal", "goal", *EPISODES)  # of a table, as in a file
PROVENANCE = "provenance/"  # before the name of a provenance vector, in files and where arrays are listed

# Our name and what others call it. An array of any other name is not read.
ALIASES = {
    "state": ("state", "states", "observation", "observations", "obs"),
    "action": ("action", "actions", "act", "acts"),
    "next_state": ("next_state", "next_states", "next_observation", "next_observations", "next_obs"),
    "reward": ("reward", "rewards", "rew", "rews"),
    "terminal": ("terminal", "terminals", "terminated", "terminations"),
    "timeout": ("timeout", "timeouts", "truncated", "truncations"),
    "done": ("done", "dones"),  # one or the other: it does not tell which
    "goal": ("goal", "goals", "infos/goal", "desired_goal"),
    "episode": ("episode", "episodes", "episode_id"),
    "step": ("step",),
}
OUR_NAME = {alias: name for name, aliases in ALIASES.items() for alias in aliases}
VECTORS = ("reward", "terminal", "timeout", "done", *EPISODES)  # one value a row
TEXTS = ("columns", "source")  # JSON that travels with the arrays

"""The rows that a page holds, the recorded rows that their parts come from, and the list of rows that it exports."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mocoda.analysis.scores import Scores
from mocoda.augmentation.episode_rollout import nearest_rows
from mocoda.augmentation.episode_walks import donor_names
from mocoda.augmentation.support import recipe_number
from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import BUILT_IN

MAX_BYTES = 4_500_000  # of the rows that a page holds
PART = 0.25  # of the rows are recorded ones; twice as many are the worst generated ones
WORST = 8  # rows that the first screen lists
MAX_SEARCHED = 50_000  # recorded rows among which the nearest is searched


@dataclass(frozen=True, eq=False)
class Split:
    """A table split into its recorded and its generated rows, with the numbers that these have in it.

    scores     of all its rows
    elsewhere  recorded rows belong to another table, and so have no numbers
    numbers    (N,), the numbers that the rows have in a table of which this one is an excerpt
    """

    data: Transitions
    scores: Scores
    known: Transitions
    made: Transitions | None
    known_numbers: Tensor
    made_numbers: Tensor
    elsewhere: bool
    numbers: Tensor | None = None

    @property
    def tables(self) -> list[Transitions]:
        return [self.known] if self.made is None else [self.known, self.made]

    def named(self, places: Tensor) -> Tensor:
        """The numbers that the page calls these rows by; -1 stays."""
        return places if self.numbers is None else torch.where(places < 0, -1, self.numbers[places.clamp(min=0)])

    @property
    def of_recorded(self) -> Scores:
        """The same scores, of which `worst` finds the worst recorded rows."""
        return replace(self.scores, generated=~self.scores.generated)

    @property
    def row_bytes(self) -> int:
        """The size of a row in the page, as text."""
        width = 3 * (2 * self.data.state.shape[1] + self.data.action.shape[1])
        return 4 * (4 * width // 3 + 3 * len(self.data.columns) + 28)


def choose_rows(split: Split, count: int, show: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
    """The numbers of the rows to hold, ascending: `count` at most, and all rows to `show`.

    Also which of them are a random sample of each kind of rows.
    """
    count = min(count, max(1, MAX_BYTES // 2 // split.row_bytes))
    part = max(1, int(PART * count))
    chosen, drawn = [show], []
    if not split.elsewhere:
        drawn.append(split.known_numbers[stream.child("known").permutation(len(split.known))])
        chosen += [drawn[0][: part // 2], *_worst(split.of_recorded, part // 2)]
    if split.made is not None:
        chosen += _worst(split.scores, 2 * part)
        drawn.append(split.made_numbers[stream.child("made").permutation(len(split.made))])
    chosen.append(drawn[-1][:count])
    kept: Tensor = torch.tensor(list(dict.fromkeys(torch.cat(chosen).tolist()))[: max(count, len(show))])
    # A prefix of a random order is a random sample, though some of it may be among the worst rows, too.
    sample = torch.cat([order[torch.isin(order, kept).cumprod(0).bool()] for order in drawn])
    return kept.sort().values, sample


def _worst(scores: Scores, count: int) -> list[Tensor]:
    """The numbers of generated rows with the lowest scores: of all aspects, then of each that can be low."""
    judged = {aspect: values for aspect, values in scores.details.items() if aspect != "new"}
    each = [replace(scores, details={aspect: values}).worst(count // len(judged)) for aspect, values in judged.items()]
    return [scores.worst(min(count, WORST)), *each]


def choose_episodes(split: Split, count: int, recorded: Sequence[int]) -> Tensor:
    """The numbers of the episodes to hold whole: `recorded` ones in their order, and new ones with low scores first."""
    orders = [torch.tensor(recorded, dtype=torch.long)]
    if split.made is not None and split.made.episode is not None and bool((split.made.episode >= 0).any()):
        found = split.scores.episodes()
        assert found.episode is not None
        orders.append(found.episode[found.worst(len(found.episode))])
    orders = [order for order in orders if len(order)]
    kept = [torch.zeros(0, dtype=torch.long)]
    for order in orders:
        assert split.data.episode is not None
        numbers, counts = split.data.episode.unique(return_counts=True)
        steps = counts[torch.searchsorted(numbers, order)]
        room = min(count, MAX_BYTES // 2 // split.row_bytes) // len(orders)
        order, steps = order[steps <= room], steps[steps <= room]
        kept.append(order[steps.cumsum(0) <= room])
    return torch.cat(kept)


# --- donors


def donors(known: Transitions, made: Transitions, graph: LocalGraph) -> tuple[Tensor, Tensor]:
    """The recorded row of each part of generated rows: long (M, parents), and whether it has the part to the bit.

    Provenance names the donors. Parts without one (drawn by a density, predicted, or of older files) get the recorded
    row that is nearest to them.
    """
    found, exact, every = [], [], -(-len(known) // MAX_SEARCHED)
    for names, factor in zip(donor_names(graph), graph.factors.values(), strict=True):
        columns, donor = list(factor), noted_donors(known, made, *names)
        differs = (known.rows[donor][:, columns] != made.rows[:, columns]).any(1)  # -1 is the last row
        lost = ((donor < 0) | differs).nonzero()[:, 0]
        if len(lost):
            donor[lost] = nearest_rows(made.rows[lost][:, columns], known.rows[::every, columns]) * every
        found.append(donor)
        exact.append((known.rows[donor][:, columns] == made.rows[:, columns]).all(1))
    return torch.stack(found, 1), torch.stack(exact, 1)


def noted_donors(known: Transitions, made: Transitions, name: str, step: str) -> Tensor:
    """The recorded rows (M,) that provenance names as donors, by episode and step or by index; -1 where it does not."""
    notes = made.provenance
    if name not in notes:
        return torch.full((len(made),), -1, device=made.device)
    if step not in notes:
        order = known.provenance.get(name, torch.arange(len(known), device=known.device))  # its own index
        return _lookup(order, notes[name])
    if known.episode is None or known.step is None:
        return torch.full((len(made),), -1, device=made.device)
    steps = 1 + max(int(known.step.max()), int(notes[step].max()))
    places = known.episode.long() * steps + known.step
    wanted = torch.where(notes[name] < 0, -1, notes[name].long() * steps + notes[step])
    return _lookup(places, wanted)


def _lookup(names: Tensor, wanted: Tensor) -> Tensor:
    """Where each wanted number (M,) is among names (N,); -1: nowhere."""
    ordered, order = names.long().sort(stable=True)
    found = torch.searchsorted(ordered, wanted.long()).clamp(max=len(ordered) - 1)
    return torch.where((ordered[found] == wanted) & (wanted >= 0), order[found], -1)


def main_donors(donor: Tensor) -> Tensor:
    """The recorded row (M,) that most parts (M, parents) of each row come from; of several, that of the first part."""
    votes = (donor[:, :, None] == donor[:, None]).sum(2)
    return donor.gather(1, votes.argmax(1, keepdim=True))[:, 0]


# --- packing


def pack_rows(split: Split, numbers: Tensor, sample: Tensor, graph: LocalGraph) -> dict[str, Any]:
    """Rows (M,) of the table with all that the page shows of them, arrays as base64; which of them are a sample."""
    data = split.data
    shown, made = data[numbers], torch.isin(numbers, split.made_numbers)
    values = torch.cat([shown.rows, shown.next_state], 1)
    donor = torch.full((len(shown), len(graph.parents)), -1, device=data.device)
    exact = torch.zeros_like(donor, dtype=torch.bool)
    base, given = torch.full_like(values, torch.nan), torch.full_like(values, torch.nan)
    main = torch.full((len(shown),), -1, device=data.device)
    episode = torch.full_like(donor, -1)
    if bool(made.any()):
        found, exact[made] = donors(split.known, shown[made], graph)
        whole = torch.cat([split.known.rows, split.known.next_state], 1)
        main[made] = main_donors(found)
        base[made] = whole[main[made]]
        owner = torch.empty(values.shape[1], dtype=torch.long, device=data.device)
        for number, columns in enumerate(graph.factors.values()):
            owner[list(columns)] = number
            if number < len(graph.children):
                owner[[graph.width + column for column in columns]] = number
        given[made] = whole[found[:, owner], torch.arange(values.shape[1], device=data.device)]
        donor[made] = split.known_numbers[found]
        main[made] = split.known_numbers[main[made]]
        if split.known.episode is not None:
            episode[made] = split.known.episode[found]
    masks, mask = torch.unique(graph.mask(shown.rows), dim=0, return_inverse=True)
    nothing = torch.full((len(shown),), torch.nan, device=data.device)
    none = torch.full_like(numbers, -1)
    one = recipe_number(str(data.source.get("recipe")))  # of all rows, where they do not note it themselves
    recipe = shown.provenance.get("recipe", torch.where(made, one, 0))
    arrays = {
        "number": split.named(numbers).int(),
        "made": made.to(torch.uint8),
        "sample": torch.isin(numbers, sample).to(torch.uint8),
        "recipe": recipe.int(),
        "episode": (none if shown.episode is None else shown.episode).int(),
        "step": (none if shown.step is None else shown.step).int(),
        "reward": nothing if shown.reward is None else shown.reward,
        "terminal": shown.terminal.to(torch.uint8),
        "scores": torch.stack([score[numbers] for score in split.scores.details.values()], 1).float(),
        "mask": mask.int(),
        "goal": nothing[:, None][:, :0] if shown.goal is None else shown.goal,
        "values": values,
        "base": base,
        "given": given,
        "main": split.named(main).int(),
        "donor": split.named(donor).int(),
        "exact": exact.to(torch.uint8),
        "donorEpisode": episode.int(),
    }
    return {name: _packed(array) for name, array in arrays.items()} | {
        "masks": [one.nonzero().tolist() for one in masks != graph.sparsest.to(masks.device)],  # edges that differ
        "recipes": ["recorded", *BUILT_IN],
    }


def _packed(array: Tensor) -> dict[str, Any]:
    """An array as text: its type, its shape and its bytes."""
    values: np.ndarray[Any, Any] = array.cpu().contiguous().numpy()
    kind = {"float32": "f4", "int32": "i4", "uint8": "u1"}[str(values.dtype)]
    return {"type": kind, "shape": list(values.shape), "data": base64.b64encode(values.tobytes()).decode()}

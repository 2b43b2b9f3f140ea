"""Advice without a verdict -> the recipe worth trying, and why, in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mocoda.analysis.advice import Advice, RecipeSamples

FEW_ROWS = 1_000  # under which nothing here is certain
LITTLE_GAIN = 1.5  # times the recorded cells: not worth a recipe
NEAR, FAR = 3.0, 10.0  # times the held-out disagreement: as good as recorded, and hardly known
BADLY_FITTED = 0.1  # nats a row behind a simpler density
BADLY_PREDICTED = 0.3  # standard deviations of a step: recorded next states are better than a model's


def judged(advice: Advice) -> tuple[str | None, tuple[str, ...]]:
    """The recipe worth trying, and why."""
    said = list(_doubts(advice))
    if advice.missing:
        said += [f"{str(edge)[0].upper()}{str(edge)[1:]}." for edge in advice.missing]
        said.append(
            "The graph lacks what the data shows: recombined rows would get next states that never follow. "
            "Add these edges and check again before augmenting."
        )
    blurred = [child for child in advice.children if child.outside > 0 and not child.missing]
    said += [
        f"Factors outside of {child.name}'s parents explain {100 * child.outside:.0f}% of its error, though none of "
        "them alone: several together, or many a little. Give it more parents and check again."
        for child in blurred
    ]
    if advice.missing or blurred:
        return None, tuple(said)
    if len(advice.sets) == 1:
        said.append(
            f"There is nothing to recombine: one parent set ({', '.join(advice.sets[0].factors)}) covers every factor. "
            "If some factors do not listen to each other, or only now and then, say so in the graph."
        )
        return None, tuple(said)
    if advice.times_larger < LITTLE_GAIN:
        said.append(
            f"There is little to gain: recombining reaches only {advice.times_larger:.2g} times what is recorded. "
            "Train on the recorded rows."
        )
        return "emp", tuple(said)
    said.append("No missing edge shows." if any(child.judged for child in advice.children) else "")
    said.append(f"Recombining reaches {advice.times_larger:.3g} times what is recorded.")
    recipe, why = _choice({one.name: one for one in advice.recipes}, advice)
    return recipe, (*filter(None, said), *why)


def _doubts(advice: Advice) -> Iterable[str]:
    if advice.rows < FEW_ROWS:
        yield f"{advice.rows:,} rows are few, under {FEW_ROWS:,} nothing here is certain."
    for one in advice.sets:
        if one.gain < -BADLY_FITTED:
            yield (
                f"The mixture of {', '.join(one.factors)} describes held-out rows worse than a simpler density does "
                f"(by {-one.gain:.2g} nats a row): what recipe mocoda draws of it is doubtful."
            )


def _choice(recipes: Mapping[str, RecipeSamples], advice: Advice) -> tuple[str | None, list[str]]:
    mocoda, exchanges = recipes["mocoda"], recipes["coda"].not_here is None
    worst = max(advice.children, key=lambda child: child.heldout_factored)
    assert mocoda.relative is not None and mocoda.strange is not None
    seen = f"the ensemble disagrees {mocoda.relative:.2g} times as much on its samples as on held-out rows"
    why = []
    if mocoda.strange > 0.05:
        why.append(
            f"{100 * mocoda.strange:.0f}% of what recipe mocoda draws is under local graphs that hardly any recorded "
            "row has, where no model can know what happens: filter by disagreement."
        )
    if worst.heldout_factored > BADLY_PREDICTED:
        why.append(
            f"A small model misses {worst.name} by {100 * worst.heldout_factored:.0f}% of a step's spread: noise, hard "
            "to learn, or a parent that would need more rows to show. Only noise leaves a model's next states right."
        )
        if exchanges:
            why.append(
                "Worth trying: recipe coda, whose next states are recorded ones. Then mocoda, with a large model."
            )
            return "coda", why
    if mocoda.relative <= NEAR:
        why.append(f"Worth trying: recipe mocoda; {seen}.")
        even = recipes["mocoda-u"]
        if even.relative is not None and even.relative <= NEAR:
            why.append("Also mocoda-u, which draws what is rare as often as what is common.")
        return "mocoda", why
    if mocoda.relative <= FAR:
        limit = f"--max-disagreement {NEAR * advice.disagreement:.2g}"
        why.append(f"Worth trying: recipe mocoda with {limit}; {seen}, so leave out what the model does not know.")
        return "mocoda", why
    if exchanges:
        why.append(f"Worth trying: recipe coda, which needs no model; {seen}, too much for recipe mocoda.")
        return "coda", why
    why.append(f"No recipe is worth trying yet: {seen}. Record more rows, or narrow the parent sets.")
    return None, why

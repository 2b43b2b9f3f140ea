"""The figure of a check: errors of children, samples of recipes, and whether they keep the recorded distribution."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mocoda.analysis.advice import LOCAL_MIXTURE, MIXTURE, UNSTRATIFIED, VARIANTS, Advice
from mocoda.engine.figure_style import BLUE, GREY, INK, RED, bare, save, title_left
from mocoda.parents import RECIPES

VARIANT_COLOURS = {UNSTRATIFIED: "#2a9d8f", LOCAL_MIXTURE: "#8fc9a8", MIXTURE: "#8a94a6"}


def draw_advice(advice: Advice, path: Path) -> None:
    """Draws panels of children, recipes, and, if known, of two-sample tests."""
    panels = [_draw_children, _draw_recipes, *([_draw_laws] if advice.laws else [])]
    figure = Figure(figsize=(5.4 * len(panels), 4.8), layout="constrained")
    figure.suptitle("\n".join(advice.recommendation), x=0.01, ha="left", fontsize=12, color=INK)
    for axes, draw in zip(figure.subplots(1, len(panels)), panels, strict=True):
        draw(axes, advice)
        bare(axes)
    save(figure, path)


def _draw_children(axes: Axes, advice: Advice) -> None:
    errors, places = [100 * child.error for child in advice.children], range(len(advice.children))
    axes.bar(places, errors, 0.6, color=BLUE)
    for place, child in zip(places, advice.children, strict=True):
        if child.missing:
            text = "misses " + ", ".join(edge.parent for edge in child.missing)
            axes.annotate(
                text, (place, errors[place]), (0, 4), textcoords="offset points", ha="center", color=RED, fontsize=9
            )
    axes.set_xticks(places, [child.name for child in advice.children], rotation=45 if len(places) > 4 else 0)
    axes.set_ylim(0, 1.15 * max(errors) or 1)
    axes.set_ylabel("held-out error (% of a step's std)")
    title_left(axes, "How well a small model predicts the children")


def _draw_recipes(axes: Axes, advice: Advice) -> None:
    for one in advice.recipes:
        if one.not_here is None:
            support, relative = 100 * (one.support or 0.0), one.relative or 0.0
            axes.scatter(support, relative, s=90, color=_colour(one.name), zorder=3)
            axes.annotate(one.name, (support, relative), (6, 5), textcoords="offset points", color=INK, fontsize=9)
    axes.axhline(1, color=GREY, lw=1, ls=":")
    axes.axvline(50, color=GREY, lw=1, ls=":")
    axes.set_yscale("log")
    axes.set_xlim(-4, 104)
    axes.set_xlabel("median support (% of the data that is as rare)")
    axes.set_ylabel("disagreement (times that on held-out rows)")
    absent = ", ".join(one.name for one in advice.recipes if one.not_here is not None)
    title_left(axes, "What recipes draw" + (f" (not here: {absent})" if absent else ""))


def _draw_laws(axes: Axes, advice: Advice) -> None:
    """Draws one line per parent set; recipes that do not promise to keep its distribution are pale."""
    sets = list(dict.fromkeys(law.factors for law in advice.laws))
    recipes = list(dict.fromkeys(law.recipe for law in advice.laws))
    for number, recipe in enumerate(recipes):
        own = {law.factors: law for law in advice.laws if law.recipe == recipe}
        places = [i + 0.7 * ((number + 0.5) / len(recipes) - 0.5) for i in range(len(sets))]
        ends = [[own[s].auc - own[s].low for s in sets], [own[s].high - own[s].auc for s in sets]]
        promised = recipe in VARIANTS
        axes.errorbar(
            [own[s].auc for s in sets],
            places,
            xerr=ends,
            fmt="o",
            ms=7 if promised else 4,
            lw=2 if promised else 1,
            alpha=1 if promised else 0.5,
            color=_colour(recipe),
            label=recipe,
        )
    axes.axvline(0.5, color=GREY, lw=1, ls=":")
    axes.set_yticks(range(len(sets)), [", ".join(factors) for factors in sets])
    axes.set_ylim(len(sets) - 0.5, -0.5)
    axes.set_xlim(min(0.4, *(law.low for law in advice.laws)), 1.02)
    axes.set_xlabel("AUC of a held-out classifier, drawn against recorded rows")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.13), ncols=4)
    title_left(axes, "Parent sets: 0.5 means drawn as recorded")


def _colour(recipe: str) -> str:
    return VARIANT_COLOURS[recipe] if recipe in VARIANT_COLOURS else RECIPES[recipe].colour

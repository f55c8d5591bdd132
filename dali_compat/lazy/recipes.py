"""Which images are made together: those to which the same kinds of steps were done, with whatever numbers.

A recipe is a sequence of steps. An image follows it if its own steps are in it, in their order, and it can pass the
others as it is: a flip that it did without, say. Where an image follows none, a recipe takes up its steps, or a new one
begins. So there are few, whatever a data set draws, and each has a pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..data.headers import share_headers
from ..ops.draws import uniforms_of, width_of
from ..plan import Draw, ImageSpec
from ..plan import Step as PlanStep
from ..runtime.forks import new_lock
from ..translate.chain import Chain as Translation
from ..translate.chain import Translated
from . import operations
from .operations import FLAG, NEVER, Given, Numbers, Size, Step

_MOST, _MOST_CHAINS = 12, 48  # recipes of a data set, and how often they may grow
_MOST_KNOWN = 4096  # sequences of steps whose places are known
_LONGEST = 16  # steps that some images do without
_MOST_CONSTANTS = 6  # of a step's, such as fills: others are drawn for each image, and would use up the recipes
_LONGEST_CHAIN = 1 << 16  # steps

_Steps = Sequence[tuple[Given, Size | None, bool]]


class RecipeChain:
    """To the loader a data set: of the images, among the samples of a user's, that follow one recipe.

    Args:
        count: how many images have a header of their own.
        given: what the images are read from, PATHS or BYTES.
        steps: what is done to them, (step, size afterwards of all images or None, whether windows are all inside) each;
            None where torchvision's own functions do it, image by image.
        views: where samples have several images of one file, the chain of each: such a file is decoded once.
    """

    target_transform = transform = None

    def __init__(self, count: int, given: str, steps: _Steps | None = (), views: Sequence[RecipeChain] = ()):
        self._count, self.given, self.is_replayed, self._steps = count, given, steps is None, steps or ()
        self.translation = Translation(ImageSpec(), tuple(_translated(self._steps, 0, 0)[0]))
        if views:
            chains, at = [], 0
            for number, view in enumerate(views):
                translated, at = _translated(view._steps, at, number * _LONGEST_CHAIN)
                chains.append(Translation(ImageSpec(), tuple(translated), view=number + 1))
            structure, wrapper = tuple(range(len(chains))), "images of a sample"
            self.translation = Translation(ImageSpec(), views=tuple(chains), structure=structure, wrapper=wrapper)

    def __len__(self) -> int:
        return self._count


def _translated(steps: _Steps, at: int, first: int) -> tuple[list[Translated], int]:
    """Returns the steps as a plan has them, whose numbers begin at ``at``, and where those of the next ones begin.
    ``first``: the random stream of the first."""
    made = []
    for stream, (given, size, inside) in enumerate(steps, first):
        drawn = None
        if given.draw is not None:
            drawn = Draw("given_uniforms", (("at", at), ("of", given.draw)))
            at += uniforms_of(drawn) - at
        elif given.layout:
            drawn = Draw("given", (("at", at), ("layout", given.layout), ("sized", given.sized)))
            at += width_of(given.layout, given.sized)
        args = (*given.args, ("inside", inside)) if given.op == "crop" else given.args
        step = PlanStep(given.op, given.spec(size), args, drawn, stream=stream)
        made.append(Translated(given.op, (step,)))
    return made, at


class _Recipe:
    """Steps, and what all images have had in common after them."""

    def __init__(self, givens: list[Given]):
        self.givens = givens
        self.sizes: list[Any] = [()] * len(givens)  # (), one size, or None for several
        self.inside = [True] * len(givens)
        self.chain: RecipeChain | None = None


class Recipes:
    """The recipes of a data set's images that are read from one kind of source.

    Args:
        count, given: as Chain's.
    """

    def __init__(self, count: int, given: str):
        self._count, self._given = count, given
        self._root, self.replayed = RecipeChain(count, given), RecipeChain(count, given, None)
        self._recipes: list[_Recipe] = []
        self._constants: dict[Any, set[Any]] = {}
        self._places: dict[tuple[Given, ...], tuple[_Recipe, list[int]] | None] = {}
        self._of_views: list[Recipes] = []
        self._joint: dict[tuple[RecipeChain, ...], RecipeChain] = {}
        self._chains = 0
        self._lock = new_lock()

    def place(self, steps: Sequence[Step] | None, size: Size) -> tuple[RecipeChain, Numbers]:
        """The chain that an image of this size goes through, and its numbers there; ``replayed`` without numbers where
        it follows none."""
        if steps is None:
            return self.replayed, ()
        with self._lock:  # several loaders over one data set
            return self._place(canonical(steps), size)

    def place_views(self, views: Sequence[Sequence[Step] | None], size: Size) -> tuple[RecipeChain, Numbers] | None:
        """The same of several images of one file, which is of this size. The first images have recipes of their own,
        the second ones, and so on. None where there are too many, or one of the images follows none."""
        with self._lock:
            self._of_views += [Recipes(self._count, self._given) for _ in views[len(self._of_views) :]]
            placed = [recipes.place(steps, size) for recipes, steps in zip(self._of_views, views, strict=False)]
            chains = tuple(chain for chain, _ in placed)
            known = chains in self._joint
            if any(chain.is_replayed for chain in chains) or (not known and len(self._joint) >= _MOST_CHAINS):
                return None
            if not known:
                self._joint[chains] = RecipeChain(self._count, self._given, views=chains)
                share_headers(self._joint[chains], self._root)
            return self._joint[chains], tuple(number for _, numbers in placed for number in numbers)

    def _place(self, steps: Sequence[Step], size: Size) -> tuple[RecipeChain, Numbers]:
        kinds = tuple([given for given, _ in steps])
        if kinds not in self._places:
            if len(self._places) >= _MOST_KNOWN:
                self._places.clear()
            found = self._find(kinds)
            self._places[kinds] = found
        found = self._places[kinds]
        if found is None:
            return self.replayed, ()
        recipe, places = found
        numbers = self._numbers(recipe, dict(zip(places, steps, strict=True)), size)
        if recipe.chain is None:
            if self._chains >= _MOST_CHAINS:
                return self.replayed, ()
            self._chains += 1
            known = zip(recipe.givens, [size or None for size in recipe.sizes], recipe.inside, strict=True)
            recipe.chain = RecipeChain(self._count, self._given, list(known))
            share_headers(recipe.chain, self._root)
        return recipe.chain, numbers

    def _find(self, kinds: tuple[Given, ...]) -> tuple[_Recipe, list[int]] | None:
        """A recipe that has these steps, and their places there; None where there are too many others."""
        for given in kinds:
            constants = self._constants.setdefault((given.op, given.gives), set())
            if given.args not in constants and len(constants) >= _MOST_CONSTANTS:
                return None
            constants.add(given.args)
        for recipe in self._recipes:
            merged = _merged(recipe.givens, list(kinds))
            if merged is None:
                continue
            givens, old, places = merged
            if len(givens) - len(kinds) > _LONGEST or len(givens) - len(old) > _LONGEST:
                continue
            if len(givens) > len(recipe.givens):
                if self._chains >= _MOST_CHAINS:
                    return None
                self._grow(recipe, givens, old)
            return recipe, places
        if len(self._recipes) >= _MOST or self._chains >= _MOST_CHAINS:
            return None
        self._recipes.append(_Recipe(list(kinds)))
        return self._recipes[-1], list(range(len(kinds)))

    def _grow(self, recipe: _Recipe, givens: list[Given], old: list[int]) -> None:
        """A recipe takes up steps."""
        kept = {place: number for number, place in enumerate(old)}
        recipe.sizes = [recipe.sizes[kept[i]] if i in kept else () for i in range(len(givens))]
        recipe.inside = [recipe.inside[kept[i]] if i in kept else True for i in range(len(givens))]
        recipe.givens, recipe.chain = givens, None
        self._places = {kinds: found for kinds, found in self._places.items() if found and found[0] is not recipe}

    def _numbers(self, recipe: _Recipe, own: dict[int, Step], size: Size) -> Numbers:
        """Returns those of an image at all places; what it shows of sizes and windows is noted."""
        numbers: list[float] = []
        for place, given in enumerate(recipe.givens):
            if place in own:
                values = own[place][1]
                if given.sized:
                    size = int(values[2]), int(values[3])
                    if given.op == "crop" and recipe.inside[place] and not is_inside(values):
                        recipe.inside[place], recipe.chain = False, None
            else:
                values = _off(given, size)
            numbers += values
            known = recipe.sizes[place]
            if known == ():
                recipe.sizes[place], recipe.chain = size, None
            elif known is not None and known != size:
                recipe.sizes[place], recipe.chain = None, None
        return tuple(numbers)


def _off(given: Given, size: Size) -> Numbers:
    """The numbers of a step that leaves an image of this size as it is."""
    count = width_of(given.layout, False)
    if given.off == FLAG:
        off = (0.0, *[1.0] * (count - 1))
        return (*size, *size, *off) if given.sized else off
    return (*size, *size, *size) if given.op == "resize" else (*size, *size, 0.0, 0.0, *size)


def _merged(a: list[Given], b: list[Given]) -> tuple[list[Given], list[int], list[int]] | None:
    """A shortest sequence that has both, and the places there of each; None where there would be a step that not all
    images can pass, or do without."""
    best: list[list[int]] = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]  # of the rest, the longest in common
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            best[i][j] = 1 + best[i + 1][j + 1] if a[i] == b[j] else max(best[i + 1][j], best[i][j + 1])
    made: list[Given] = []
    of_a, of_b, i, j = [], [], 0, 0
    while i < len(a) or j < len(b):
        if i < len(a) and j < len(b) and a[i] == b[j]:
            of_a.append(len(made))
            of_b.append(len(made))
            made.append(a[i])
            i, j = i + 1, j + 1
            continue
        if j == len(b) or (i < len(a) and best[i + 1][j] >= best[i][j + 1]):
            one, i = a[i], i + 1
            of_a.append(len(made))
        else:
            one, j = b[j], j + 1
            of_b.append(len(made))
        if one.off == NEVER:
            return None
        made.append(one)
    return made, of_a, of_b


# ---- an order of steps in which less is computed, and which more images have in common: a window of a window is one
# window, a flip comes after it, and what ColorJitter does one after the other is one step

_WINDOWS = ("crop", "pad")
_OTHER_NUMBERS = frozenset(("to_dtype", "tensor_to_pil", "arithmetic"))


def canonical(steps: Sequence[Step]) -> list[Step]:
    """Steps that give the same, to the last bit."""
    made: list[Step] = []
    for step in steps:
        if step[0].op in _WINDOWS:
            _add_window(made, step)
        elif made and step[0].args == (("name", "div"),) and step[1] == (1.0, 255.0) and _is_cast_of_bytes(made):
            (last, _), args = made[-1], (("dtype", torch.float32), ("like", "v1"))
            made[-1] = operations.given("to_dtype", args, last.gives, (), NEVER, None), ()
        elif made and step[0].op == "color_jitter" and step[0] == made[-1][0] and step[1][1] not in made[-1][1][1:5]:
            made[-1] = step[0], _jittered(made[-1][1], step[1])
        else:
            made.append(step)
    return made


def _jittered(first: Numbers, second: Numbers) -> Numbers:
    """One more adjustment, in the first place of the order that is free."""
    numbers, added = list(first), int(second[1])
    numbers[numbers.index(-1.0, 1, 5)] = second[1]
    numbers[5 + added] = second[5 + added]
    return tuple(numbers)


def _is_cast_of_bytes(made: Sequence[Step]) -> bool:
    *before, (last, _) = made
    cast = last.op == "to_dtype" and dict(last.args) == {"dtype": torch.float32, "like": "cast"}
    return cast and not any(one.op in _OTHER_NUMBERS for one, _ in before)


def _add_window(made: list[Step], step: Step) -> None:
    """Takes a window before the flips that precede it, and together with a window before these."""
    at = len(made)
    while at and made[at - 1][0].op == "flip":
        at -= 1
        step = step[0], _mirrored(step[1], dict(made[at][0].args)["axis"])
    if at and made[at - 1][0].op in _WINDOWS and is_inside(step[1]):
        before, numbers = made[at - 1]
        top, left = step[1][4] + numbers[4], step[1][5] + numbers[5]
        made[at - 1] = before, (*numbers[:2], *step[1][2:4], top, left, *step[1][2:4])
    else:
        made.insert(at, step)


def _mirrored(numbers: Numbers, axis: str) -> Numbers:
    height, width, h, w, top, left, *_ = numbers
    if axis == "horizontal":
        return height, width, h, w, top, width - left - w, h, w
    return height, width, h, w, height - top - h, left, h, w


def is_inside(numbers: Numbers) -> bool:
    """Returns whether a window lies within the image."""
    height, width, _, _, top, left, h, w = numbers
    return top >= 0 and left >= 0 and top + h <= height and left + w <= width

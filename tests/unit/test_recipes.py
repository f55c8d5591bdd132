"""Recipes: which images go through one pipeline, and with which numbers."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from dali_compat.lazy import kernels as stand_ins  # noqa: F401 - its operations are registered
from dali_compat.lazy.operations import State, outcome_of
from dali_compat.lazy.recipes import Recipes, canonical
from torchvision.transforms import functional as F

from dali_compat.data.sources import PATHS
from dali_compat.ops import kernels
from dali_compat.ops.draws import compute
from dali_compat.plan import Options
from dali_compat.translate.lower import lower

TOP = State("pil", "RGB", (3, 60, 70))


def done(*calls, state=TOP):
    """The steps of several operations, one after another; None where no kernel is known to do one."""
    steps = []
    for name, *args in calls:
        outcome = outcome_of(name, state, "v1", args, {})
        assert outcome is not None, name
        if outcome.steps is None:
            return None
        steps += outcome.steps
        state = outcome.state
    return steps


def ran(chain, numbers, image):
    """The image that a chain makes, as exact kernels do it."""
    plan = lower(chain.translation, Options(exact=True))
    steps = (*plan.dali, *plan.batch)
    sizes = np.array([image.shape[-2:]])
    arrays = compute(steps, sizes, lambda stream, k: np.array([numbers])[:, :k], slice(None))
    made = image[None]
    for step, values in zip(steps, arrays, strict=True):
        made = kernels.run(step, made, values)
    return made[0]


@pytest.fixture
def image():
    return torch.randint(0, 256, (3, 60, 70), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def random_calls(rng):
    calls, size = [], (60, 70)
    for _ in range(rng.randint(0, 6)):
        name = rng.choice(["crop", "hflip", "vflip", "pad", "invert", *["adjust"] * 3])
        if name == "crop":
            h, w = rng.randint(2, size[0] + 4), rng.randint(2, size[1] + 4)
            calls.append((name, rng.randint(-3, size[0] - 2), rng.randint(-3, size[1] - 2), h, w))
            size = h, w
        elif name == "pad":
            left, top, right, bottom = (rng.randint(0, 5) for _ in range(4))
            calls.append((name, [left, top, right, bottom], rng.choice([0, 9])))
            size = size[0] + top + bottom, size[1] + left + right
        else:
            adjusted = rng.choice(["brightness", "contrast", "saturation", "hue"])
            calls.append((f"adjust_{adjusted}", rng.choice([0.3, 0.5])) if name == "adjust" else (name,))
    return [*calls, ("pil_to_tensor",)]


def by_torchvision(image, calls):
    made = F.to_pil_image(image)
    for name, *args in calls:
        made = getattr(F, name)(made, *args)
    return made


def test_images_are_torchvisions_in_any_recipe(image):
    """Whatever the recipe has taken up before, of other images."""
    rng, recipes = random.Random(0), Recipes(10, PATHS)
    chains = set()
    for _ in range(150):
        calls = random_calls(rng)
        chain, numbers = recipes.place(done(*calls), (60, 70))
        if chain.is_replayed:
            continue
        chains.add(id(chain))
        assert torch.equal(ran(chain, numbers, image), by_torchvision(image, calls)), calls
    assert 1 < len(chains) <= 48


def test_flips_and_windows_are_numbers():
    """Images with and without them share a chain, and a window of a window is one."""
    recipes = Recipes(10, PATHS)
    all_of_it = done(("crop", 1, 2, 40, 50), ("hflip",), ("vflip",), ("crop", 3, 4, 20, 30), ("pil_to_tensor",))
    assert [given.op for given, _ in canonical(all_of_it)] == ["crop", "flip", "flip", "pil_to_tensor"]
    first, _ = recipes.place(all_of_it, (60, 70))
    for calls in ([("crop", 0, 0, 20, 30)], [("hflip",), ("crop", 5, 6, 20, 30)], [("crop", 1, 1, 20, 30), ("vflip",)]):
        assert recipes.place(done(*calls, ("pil_to_tensor",)), (60, 70))[0] is first
    assert first.translation.gives.size == (20, 30)
    other, _ = recipes.place(done(("crop", 0, 0, 21, 30), ("pil_to_tensor",)), (60, 70))
    assert other is not first and other.translation.gives.size is None
    assert recipes.place(all_of_it, (60, 70))[0] is other


def test_adjustments_in_turn_are_one_step():
    """Of each kind one."""
    names = "brightness", "hue", "contrast", "hue"
    first, second = canonical(done(*((f"adjust_{name}", 0.4) for name in names)))
    assert first[0] == second[0] and first[1][:5] == (1, 0, 3, 1, -1) and second[1][:5] == (1, 3, -1, -1, -1)


def test_what_gives_other_types_has_a_recipe_of_its_own():
    recipes = Recipes(10, PATHS)
    bytes_, floats = done(("pil_to_tensor",)), done(("to_tensor",))
    assert recipes.place(bytes_, (60, 70))[0] is not recipes.place(floats, (60, 70))[0]


def test_they_are_bounded():
    """Beyond that torchvision's own functions make the images, which is found out once for a kind."""
    recipes = Recipes(10, PATHS)
    for number in range(100):
        steps = done(("to_tensor",), ("normalize", [0.5 + number / 1000] * 3, [0.5] * 3))
        recipes.place(steps, (60, 70))
        recipes.place(steps, (60, 70))
    assert recipes.place(steps, (60, 70))[0].is_replayed
    assert len({id(recipes.place(done(("to_tensor",)), (60, 70))[0])}) == 1


def test_threads_share_them(image):
    recipes, rng = Recipes(10, PATHS), random.Random(1)
    jobs = [random_calls(rng) for _ in range(200)]

    def place(calls):
        return calls, *recipes.place(done(*calls), (60, 70))

    with ThreadPoolExecutor(4) as pool:
        for calls, chain, numbers in pool.map(place, jobs):
            if not chain.is_replayed:
                assert torch.equal(ran(chain, numbers, image), by_torchvision(image, calls))


def test_constants_of_their_own_use_up_no_recipes(image):
    recipes = Recipes(10, PATHS)
    replayed = [recipes.place(done(("pad", [1, 1, 1, 1], fill)), (60, 70))[0].is_replayed for fill in range(200)]
    assert sum(replayed) > 150 and not any(replayed[:3])
    calls = [("crop", 1, 2, 40, 50), ("invert",), ("pil_to_tensor",)]
    chain, numbers = recipes.place(done(*calls), (60, 70))
    assert not chain.is_replayed and torch.equal(ran(chain, numbers, image), by_torchvision(image, calls))

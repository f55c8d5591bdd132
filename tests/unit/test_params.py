"""Geometry equals torchvision's arithmetic, and draws are keyed by seed, stream and position."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import functional as F
from torchvision.transforms.functional import _compute_resized_output_size

from dali_compat.ops import draws
from dali_compat.ops.arguments import resizes_in_integers
from dali_compat.ops.draws import ImageTooSmall, compute
from dali_compat.ops.pixels import resample
from dali_compat.plan import Gate, ImageSpec, Options, Step, draw
from dali_compat.randoms import Randoms, generator_states, own_generators, seed_generators, set_generators
from dali_compat.translate import translate
from dali_compat.translate.lower import lower

RNG = np.random.default_rng(0)
SIZES = np.concatenate(
    [RNG.integers(1, 3000, (2000, 2)), RNG.integers(1, 40, (1000, 2)), [[1, 1], [1, 3000], [3000, 1]]]
)


def run(name, sizes, seed=0, position=0, stream=0, **args):
    """Return (arrays, sizes after) of one draw."""
    step = Step("crop", ImageSpec(), draw=draw(name, **args), stream=stream)
    (values,) = compute((step,), np.asarray(sizes), Randoms(seed, position, len(sizes)), slice(None))
    return values


# ---- geometry


@pytest.mark.parametrize(
    "size, max_size",
    [((256,), None), ((7,), None), ((224, 99), None), ((256,), 300), ((33,), 34), (None, 500), ((600,), 1000)],
)
def test_resize_size_equals_torchvision(size, max_size):
    requested = size and list(size)
    expected = np.array(
        [_compute_resized_output_size(tuple(s), requested, max_size, allow_size_none=True) for s in SIZES.tolist()]
    )
    possible = (expected >= 1).all(1)
    assert possible.sum() > 2000
    assert np.array_equal(run("resize", SIZES[possible], size=size, max_size=max_size)["size"], expected[possible])
    for row in np.flatnonzero(~possible)[:20]:
        with pytest.raises(ImageTooSmall):
            run("resize", SIZES[[row]], size=size, max_size=max_size)


@pytest.mark.parametrize("numbers", [(10, 10, 0, 5), (10, 10, 5, 0), (9, 10, 4, 4), (10, 11, 4, 4)])
def test_given_numbers_for_an_image_of_another_size_raise(numbers):
    """Also for images without pixels. The parameters are (height, width) before and after."""
    layout = (("start", (2,), "int32"),)
    step = Step("crop", ImageSpec(), draw=draw("given", at=1, layout=layout, sized=True))
    randoms = np.array([[7, 10, 10, 4, 4, 1, 2], [7, *numbers, 1, 2]], float)
    (made,) = compute((step,), np.array([[10, 10]]), lambda stream, k: randoms[:1], slice(None))
    assert made["start"].tolist() == [[1, 2]] and made["start"].dtype == np.int32
    with pytest.raises(ImageTooSmall) as raised:
        compute((step,), np.array([[10, 10], [10, 10]]), lambda stream, k: randoms, slice(None))
    assert raised.value.row == 1


@pytest.mark.parametrize("padding", [(-5, -5, -5, -5), (0, 0, 0, -10), (1 << 15, 0, 0, 1 << 15)])
def test_pad_to_an_empty_or_huge_image_raises(padding):
    with pytest.raises(ImageTooSmall, match="op would return an image of") as raised:
        run("pad", [[30, 30], [10, 10]], padding=padding)
    assert raised.value.row == (0 if padding[0] > 0 else 1)


def _numbered(height, width):
    """Return an image whose pixel values are their positions plus one. Padding is 0."""
    return torch.arange(1, height * width + 1, dtype=torch.int32).reshape(1, height, width)


def _window_of(image: torch.Tensor, width_before: int):
    """Return start and shape of the window that an image made by _numbered() shows."""
    rows, columns = (image[0] > 0).any(1).nonzero()[:, 0], (image[0] > 0).any(0).nonzero()[:, 0]
    first = int(image[0, rows[0], columns[0]]) - 1
    return [first // width_before - int(rows[0]), first % width_before - int(columns[0])], list(image.shape[1:])


SMALL = RNG.integers(1, 60, (300, 2))


@pytest.mark.parametrize("size", [(1, 1), (20, 20), (21, 34), (60, 7), (64, 65)])
def test_center_crop_window_equals_torchvision(size):
    ours = run("center_crop", SMALL, size=size)
    for (h, w), start, shape in zip(SMALL.tolist(), ours["start"].tolist(), ours["shape"].tolist(), strict=True):
        assert (start, shape) == _window_of(F.center_crop(_numbered(h, w), list(size)), w)


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (3, 3, 3, 3), (1, 2, 3, 4), (9, 0, 0, 5)])
def test_pad_window_equals_torchvision(padding):
    ours = run("pad", SMALL, padding=padding)
    for (h, w), start, shape in zip(SMALL.tolist(), ours["start"].tolist(), ours["shape"].tolist(), strict=True):
        assert (start, shape) == _window_of(F.pad(_numbered(h, w), list(padding)), w)


def test_each_step_starts_from_the_sizes_after_the_previous_one():
    plan = lower(translate(v1.Compose([v1.Pad(3), v1.Resize(50), v1.CenterCrop(40), v1.ToTensor()])))
    arrays = compute(plan.steps, SMALL, Randoms(0, 0, len(SMALL)), slice(None))
    padded = SMALL + 6
    expected = [_compute_resized_output_size(tuple(s), [50]) for s in padded.tolist()]
    assert np.array_equal(arrays[1]["size"], expected)
    assert (arrays[2]["shape"] == 40).all()


@pytest.mark.parametrize("filter", [Image.BILINEAR, Image.BICUBIC, Image.LANCZOS])
def test_vertical_first_matches_the_order_of_pillows_passes(filter):
    """vertical_first() returns which of two one-dimensional resizes Pillow applies first."""
    rng, distinguishable = np.random.default_rng(1), 0
    for trial in range(250):
        (h, w), (oh, ow) = rng.integers(2, 90, 2).tolist(), rng.integers(2, 90, 2).tolist()
        if trial >= 200:  # rows and columns shrink by similar factors
            h, oh = 2 * w + oh, 2 * ow + oh
        elif trial >= 150:  # very tall
            h, w, oh, ow = rng.integers(290, 320).item(), 3, rng.integers(2, 400).item(), rng.integers(1, 9).item()
        image = Image.fromarray(rng.integers(0, 256, (h, w), dtype=np.uint8))
        both = image.resize((ow, oh), filter).tobytes()
        vertical = image.resize((w, oh), filter).resize((ow, oh), filter).tobytes()
        horizontal = image.resize((ow, h), filter).resize((ow, oh), filter).tobytes()
        first = resample.vertical_first(np.array([[h, w]]), np.array([[oh, ow]]))[0]
        assert both == (vertical if first else horizontal)
        distinguishable += vertical != horizontal
    assert distinguishable > 100


def test_vertical_first_with_an_older_pillow_is_false(monkeypatch):
    """An older Pillow always starts with the width."""
    own = Image.Image.resize

    def width_first(self, size, filter):
        return own(own(self, (size[0], self.height), filter), size, filter)

    resample._pillow_starts_vertically.cache_clear()
    monkeypatch.setattr(Image.Image, "resize", width_first)
    try:
        assert not resample.vertical_first(np.array([[300, 40], [404, 3]]), np.array([[50, 37], [9, 2]])).any()
    finally:
        resample._pillow_starts_vertically.cache_clear()


@pytest.mark.parametrize("passes", ["one", "as Pillow", "width first"])
def test_resize_with_crop_reads_only_the_window_of_the_input(passes):
    """The composed regions of the calls equal the window's part of the input."""
    sizes = RNG.integers(60, 900, (200, 2))
    crop = draw("center_crop", size=(40, 33))
    resize = draw("resize", size=(50,), max_size=None)
    full = run("resize", sizes, size=(50,), max_size=None)["size"]
    window = run("center_crop", full.astype(np.int64), size=(40, 33))
    calls = run("resize_lowered", sizes, resize=resize, crop=crop, passes=passes)
    scale = sizes / full
    low, high = window["start"] * scale, (window["start"] + window["shape"]) * scale
    if passes == "one":
        start, end = calls["roi_start"], calls["roi_end"]
        assert (calls["size"] == (40, 33)).all()
    else:  # the region of the second call, mapped from the output of the first call to the input
        back = (calls["roi_end"] - calls["roi_start"]) / calls["size"]
        start = calls["roi_start"] + calls["second_roi_start"] * back
        end = calls["roi_start"] + calls["second_roi_end"] * back
        assert (calls["second_size"] == (40, 33)).all()
        changed = (calls["size"] != sizes).sum(1)
        assert (changed <= 1).all(), "the first pass works on one axis"
    assert np.allclose(start, low, atol=1e-2) and np.allclose(end, high, atol=1e-2)


# ---- keys


@pytest.mark.parametrize("k, width", [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (22, 24)])
def test_random_numbers_equal_numpys_philox(k, width):
    """Bit for bit those of numpy's Generator, so that results of older versions remain valid."""
    numbers = np.random.Generator(np.random.Philox(key=[7, 3])).random((105, width))
    assert np.array_equal(Randoms(7, 5, 100)(3, k), numbers[5:, :k])


@pytest.mark.parametrize("k", [1, 2, 3, 22])
def test_random_numbers_do_not_depend_on_the_batch(k):
    whole = Randoms(7, 0, 100)(3, k)
    assert whole.shape == (100, k) and whole.min() >= 0 and whole.max() < 1
    for split in (1, 7, 32, 99):
        parts = [Randoms(7, at, min(split, 100 - at))(3, k) for at in range(0, 100, split)]
        assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize(
    "name, args",
    [
        ("random_crop", {"size": (9, 9)}),
        ("bernoulli", {"p": 0.5}),
        ("random_resized_crop", {"scale": (0.08, 1), "ratio": (0.75, 4 / 3)}),
    ],
)
def test_selected_rows_draw_the_values_of_the_whole_batch(name, args):
    steps = (Step("crop", ImageSpec(), draw=draw(name, **args), stream=2),)
    sizes, randoms = RNG.integers(20, 90, (50, 2)), Randoms(11, 640, 50)
    (whole,) = compute(steps, sizes, randoms, slice(None))
    rows = np.array([3, 17, 18, 49])
    for chosen in (rows, rows.tolist()):
        (part,) = compute(steps, sizes[rows], randoms, chosen)
        assert all(np.array_equal(part[key], whole[key][rows]) for key in whole)


def test_numbers_of_other_seeds_streams_and_positions_are_uncorrelated():
    u = [
        Randoms(seed, position, 500)(stream, 2)
        for seed, position, stream in [(0, 0, 0), (1, 0, 0), (0, 500, 0), (0, 0, 1), (2**63 - 1, 0, 0), (1, 0, 1)]
    ]
    flat = np.array([a.ravel() for a in u])
    assert np.abs(np.corrcoef(flat) - np.eye(len(u))).max() < 0.12  # 3.8 standard deviations of 1/sqrt(1000)
    assert len(np.unique(flat)) == flat.size
    within = np.corrcoef(Randoms(0, 0, 2000)(0, 4).T)
    assert np.abs(within - np.eye(4)).max() < 0.09


@pytest.mark.parametrize("exact", [False, True])
def test_fused_plan_draws_the_values_of_the_single_steps(exact):
    transform = v1.Compose(
        [
            v1.Resize(60),
            v1.RandomCrop(40),
            v1.RandomGrayscale(0.5),
            v1.RandomHorizontalFlip(),
            v1.RandomVerticalFlip(),
            v1.ToTensor(),
            v1.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )
    plan, sizes, randoms = (
        lower(translate(transform), Options(exact, gpu=True)),
        RNG.integers(60, 90, (64, 2)),
        Randoms(5, 128, 64),
    )
    chain = compute(plan.steps, sizes, randoms, slice(None))
    lowered = (*plan.dali, *plan.batch)
    assert len(lowered) < len(plan.steps)
    arrays = compute(lowered, sizes, randoms, slice(None))
    flags = {s.stream: a["flag"] for s, a in zip(plan.steps, chain, strict=True) if "flag" in a}
    assert len(flags) == 3 and len({f.tobytes() for f in flags.values()}) == 3
    found = {s.stream: a["flag"] for s, a in zip(lowered, arrays, strict=True) if "flag" in a}
    assert found.keys() == flags.keys() and all(np.array_equal(found[k], flags[k]) for k in flags)

    unfused = lower(translate(v1.Compose([v1.RandomCrop(40), v1.ToTensor()])))
    window = run("random_crop", np.full((64, 2), 90), 5, 128, size=(40, 40))["start"]
    assert np.array_equal(compute(unfused.dali, np.full((64, 2), 90), randoms, slice(None))[0]["start"], window)
    resized = next(a for s, a in zip(lowered, arrays, strict=True) if s.op == "resize")
    if not exact:
        assert np.allclose(resized["roi_start"], chain[1]["start"] * sizes / chain[0]["size"], atol=1e-3)


@pytest.mark.skipif(not resizes_in_integers("bilinear"), reason="DALI resizes")
@pytest.mark.parametrize("middle", [[v1.RandomCrop(40)], [v1.CenterCrop(40), v1.RandomHorizontalFlip()], []])
def test_fused_resize_on_cpu_draws_the_values_of_the_single_steps(middle):
    transform = v1.Compose([v1.Resize(60) if middle else v1.Resize((60, 50)), *middle, v1.ToTensor()])
    plan, sizes, randoms = lower(translate(transform)), RNG.integers(60, 90, (64, 2)), Randoms(5, 128, 64)
    (step,) = plan.batch
    (arrays,) = compute(plan.batch, sizes, randoms, slice(None))
    chain = compute(plan.steps, sizes, randoms, slice(None))
    of = {s.op: values for s, values in zip(plan.steps, chain, strict=True)}
    assert step.op == "resize_mirror_normalize" and not plan.dali
    assert np.array_equal(arrays["size"], of["resize"]["size"])
    assert np.array_equal(arrays["start"], of["crop"]["start"] if "crop" in of else np.zeros((64, 2)))
    assert np.array_equal(arrays["mirror"], of["flip"]["flag"] if "flip" in of else np.zeros(64))
    assert (arrays["shape"] == (40 if "crop" in of else (60, 50))).all()


def test_steps_after_a_gate_use_the_sizes_after_it():
    """Half of the images are 10 x 10 before the crop, the others are unchanged."""
    chooses = Step("choose", ImageSpec(), draw=draw("bernoulli", p=0.5), stream=0)
    resize = Step("resize", ImageSpec(), draw=draw("resize", size=(10, 10)), stream=1, when=(Gate(0, 1),))
    crop = Step("crop", ImageSpec(), draw=draw("center_crop", size=(4, 4)), stream=2)
    sizes = np.full((200, 2), 60)
    _, gated, cropped = compute((chooses, resize, crop), sizes, Randoms(0, 0, 200), slice(None))
    assert 60 < gated["flag"].sum() < 140 and (sizes == 60).all()
    assert np.array_equal(cropped["start"], np.where(gated["flag"][:, None], 3, 28).repeat(2, 1))


def test_choice_with_weight_zero_is_never_chosen():
    """Not even for the number 0, which is drawn once in 2**53 times."""
    for p, chosen in (((0.0, 1.0), 1), ((0.0, 0.0, 2.0, 0.0), 2), ((1.0, 0.0), 0)):
        arrays, _ = draws.run(draw("choice", p=p), np.full((2, 2), 5), np.array([[0.0], [1 - 2**-53]]))
        assert arrays["choice"].tolist() == [chosen, chosen]


GENERATORS = {"torch": torch.rand, "random": lambda count: [random.random()] * count, "numpy": np.random.rand}


@pytest.mark.parametrize("name", GENERATORS)
def test_own_generators_restore_the_global_generators(name):
    def some() -> list[float]:
        return list(map(float, GENERATORS[name](3)))

    seed_generators(5)
    expected = [some(), some()]
    seed_generators(5)
    found = [some()]
    with own_generators(1, 2):
        own = some()
    with pytest.raises(KeyError), own_generators(1, 2):  # noqa: PT012  (an error inside the context)
        assert some() == own
        raise KeyError
    assert [*found, some()] == expected and own not in expected


def test_set_generators_restores_the_states():
    """NumPy stores the second normal number of a pair separately from the rest of its state."""
    for before in (lambda: None, np.random.rand, np.random.randn, lambda: np.random.randn(2)):
        np.random.seed(3)
        for _ in range(3):
            before()
            states = generator_states()
            drawn = [np.random.randn(), np.random.rand(), np.random.randn(), random.random(), torch.rand(1).item()]
            generator_states()
            set_generators(states)
            again = [np.random.randn(), np.random.rand(), np.random.randn(), random.random(), torch.rand(1).item()]
            assert drawn == again

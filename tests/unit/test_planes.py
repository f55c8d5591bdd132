"""Kernels of engine/planes, compared with libjpeg-turbo's arithmetic in numpy and with Pillow's resize.

Without a GPU, Triton's interpreter runs them.
"""

import random

import interpreted
import numpy as np
import pytest
import torch
from PIL import Image
from planes import PILLOWS, coloured, upsampled
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from dali_compat.engine.pil import apply
from dali_compat.engine.planes import engines, geometry
from dali_compat.engine.planes.geometry import Windows, planes_of, rows_of, whole_rows_of
from dali_compat.engine.planes.program import PlanesProgram
from dali_compat.ops.convert import conversion_table
from dali_compat.ops.draws import compute
from dali_compat.ops.image_by_image import run_all
from dali_compat.ops.kernels import rows_of as row_of
from dali_compat.ops.pixels import resample
from dali_compat.plan import ImageSpec, Options, step
from dali_compat.randoms import Randoms
from dali_compat.translate import translate
from dali_compat.translate.lower import lower

pytest.importorskip("triton")
DEVICE = "cuda" if interpreted.ON_GPU else "cpu"
runs = interpreted.runs


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    """Use small blocks, because the interpreter takes the same time for any block size."""
    if interpreted.INTERPRETS:
        from dali_compat.engine.planes import kernels

        monkeypatch.setattr(kernels, "_BLOCK", 2048)


class RandomPlanes:
    """Images of random planes, with their position on the device and their expected colors."""

    def __init__(self, shapes, steps, seed=0):
        rng = np.random.default_rng(seed)
        self.sizes = np.array(shapes)
        across, down = np.array(steps).T
        self.planes = planes_of(self.sizes, across, down)
        bytes_ = rng.integers(0, 256, int(self.planes.bytes.sum()), dtype=np.uint8)
        self.bytes = torch.from_numpy(bytes_).to(DEVICE)
        self.images = []
        for i, (height, width) in enumerate(shapes):
            part = [self._plane(bytes_, i, 0, height, width)]
            high, wide, x, y = self.planes.chroma[i].tolist()
            if x:
                two = [upsampled(self._plane(bytes_, i, c, high, wide), height, width, x, y) for c in (1, 2)]
                self.images.append(coloured(part[0], *two))
            else:
                self.images.append(part[0][:, :, None].repeat(3, 2))

    def _plane(self, bytes_, i, c, height, width):
        begin, pitch = self.planes.offsets[i, c], self.planes.pitches[i, c]
        return bytes_[begin : begin + pitch * height].reshape(height, pitch)[:, :width]

    def rendered(self, windows, size, interpolation="bilinear", like="pil", table=None, channels_last=False):
        rows, layout = rows_of(self.planes, windows, size, interpolation, like)
        dtype = torch.uint8 if table is None else table.dtype
        layout_of = torch.channels_last if channels_last else torch.contiguous_format
        out = torch.empty((len(rows), 3, *size), dtype=dtype, device=DEVICE).to(memory_format=layout_of)
        from dali_compat.engine.planes import kernels

        kernels.render(self.bytes, torch.from_numpy(rows).to(DEVICE), layout, table, out)
        return out.cpu()


def whole(sizes, full=None, begin=None, flips=None):
    zeros = np.zeros_like(sizes)
    return Windows(zeros, sizes, sizes if full is None else full, *(zeros if a is None else a for a in (begin, flips)))


def tensors(images):
    return torch.stack([torch.from_numpy(np.ascontiguousarray(image)).movedim(-1, 0) for image in images])


@interpreted.elsewhere
def test_kernels_compile_for_a_gpu():
    """The interpreter accepts code that the compiler refuses; no GPU is needed to compile."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from dali_compat.engine.planes import kernels

    types = dict.fromkeys(("planes", "region", "wanted"), "*u8") | {"rows": "*i64"}
    types |= dict.fromkeys(("weights", "first", "lines"), "*i32")
    for name, constants in (
        ("_weigh", {"bicubic": True, "v2": True, "block": 256}),
        ("_weigh", {"bicubic": False, "v2": False, "block": 16}),
        ("_colour", {"block": 256}),
        ("_differ", {"block": 256, "made": "*i32"}),
        ("_half", {"block": 256}),
        ("_rest", {"converts": True, "block": 256, "out": "*fp32"}),
        ("_rest", {"converts": False, "block": 256, "out": "*u8"}),
        ("_pick", {"converts": True, "interleaved": False, "block": 256, "out": "*fp32"}),
        ("_pick", {"converts": False, "interleaved": True, "block": 256, "out": "*u8"}),
    ):
        kernel, of_out = getattr(kernels, name), constants.pop("out", "*u8")
        of_made = constants.pop("made", "*u8")
        known = types | dict.fromkeys(("out", "table"), of_out) | dict.fromkeys(constants, "constexpr")
        known["made"] = of_made
        values = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
        source = ASTSource(kernel, {key: known.get(key, "i32") for key in kernel.arg_names}, constexprs=values)
        made = compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
        assert made.asm["cubin"]


@pytest.mark.alike
@runs
@pytest.mark.parametrize("steps", [(0, 0), (1, 1), (2, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 1), (3, 4), (4, 5), (5, 3), (16, 17), (33, 32)])
def test_rendered_colors_equal_libjpeg_turbo(steps, shape):
    made = RandomPlanes([shape], [steps], seed=sum(shape))
    assert torch.equal(made.rendered(whole(made.sizes), shape), tensors(made.images))


@runs
def test_differs_detects_a_single_changed_value_at_any_position(monkeypatch):
    from dali_compat.engine.planes import kernels

    monkeypatch.setattr(kernels, "_PROGRAMS", 2)  # several blocks for each program
    monkeypatch.setattr(kernels, "_BLOCK", 256)
    made = RandomPlanes([(5, 7), (20, 41), (1, 1), (50, 30)], [(2, 2), (1, 1), (0, 0), (2, 1)])
    rows, layout = whole_rows_of(made.planes)
    begins = np.concatenate([[0], np.cumsum([image.size for image in made.images])])
    pixels = torch.from_numpy(np.concatenate([image.ravel() for image in made.images])).to(DEVICE)

    def differs():
        return kernels.differs(made.bytes, torch.from_numpy(rows).to(DEVICE), layout, pixels).tolist()

    assert differs() == [0, 0, 0, 0]
    for i, (begin, end) in enumerate(zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True)):
        for at in {begin, (begin + end) // 2, end - 1} if interpreted.ON_GPU else {(begin + end) // 2, end - 1}:
            pixels[at] ^= 1
            assert differs() == [int(other == i) for other in range(4)]
            pixels[at] ^= 1


SHAPES = [(37, 51), (90, 33), (20, 20), (64, 128), (3, 90), (120, 7)]
STEPS = [(2, 2), (2, 1), (1, 1), (0, 0), (2, 2), (1, 2)]


@pytest.mark.alike
@runs
@pytest.mark.parametrize("interpolation", PILLOWS)
@pytest.mark.parametrize("size", [(24, 24), (40, 17)])
def test_resized_windows_equal_pillow(interpolation, size):
    made = RandomPlanes(SHAPES, STEPS)
    rng = np.random.default_rng(5)
    start = (rng.random((6, 2)) * (made.sizes - 1)).astype(np.int64)
    shape = 1 + (rng.random((6, 2)) * (made.sizes - start)).astype(np.int64)
    shape = np.minimum(shape, made.sizes - start)
    flips = rng.integers(0, 2, (6, 2))
    windows = Windows(start, shape, np.tile(size, (6, 1)), np.zeros((6, 2), np.int64), flips)
    expected = []
    for image, (top, left), (high, wide), (down, mirror) in zip(made.images, start, shape, flips, strict=True):
        part = Image.fromarray(image[top : top + high, left : left + wide])
        resized = np.asarray(part.resize(size[::-1], PILLOWS[interpolation]))
        expected.append(resized[:: -1 if down else 1, :: -1 if mirror else 1])
    assert torch.equal(made.rendered(windows, size, interpolation), tensors(expected))


@pytest.mark.alike
@runs
@pytest.mark.parametrize("like", ["pil", "v2"])
@pytest.mark.parametrize("interpolation", PILLOWS)
def test_window_of_resized_image_equals_pillow_and_torchvision(like, interpolation):
    """As for Resize and CenterCrop. The last window extends beyond the image, which torchvision fills with black."""
    made = RandomPlanes(SHAPES, STEPS)
    full = np.maximum(made.sizes * 32 // made.sizes.min(1, keepdims=True), 1)
    full[-1] = 20, 28
    begin = (full - 24) // 2
    result = made.rendered(whole(made.sizes, full, begin), (24, 24), interpolation, like)
    expected = []
    for image, (high, wide), (top, left) in zip(made.images, full.tolist(), begin.tolist(), strict=True):
        given = torch.from_numpy(np.ascontiguousarray(image)).movedim(-1, 0)[None]
        resized = resample.resize(given, (high, wide), interpolation, like)[0]
        framed = torch.nn.functional.pad(resized, (24, 24, 24, 24))
        expected.append(framed[:, top + 24 : top + 48, left + 24 : left + 48])
    assert torch.equal(result, torch.stack(expected))


@pytest.mark.alike
@runs
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_rendered_conversion_equals_lookup_table(dtype, channels_last):
    made = RandomPlanes(SHAPES[:2], STEPS[:2])
    tensor = ImageSpec("tensor", dtype=dtype)
    values = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    steps = (
        step("to_dtype", tensor, dtype=dtype, like="v2"),
        step("normalize", tensor.but(normalized=True), **values),
    )
    table = conversion_table(steps)
    windows = whole(made.sizes, np.full((2, 2), 16))
    plain = made.rendered(windows, (16, 16))
    result = made.rendered(windows, (16, 16), table=table.to(DEVICE), channels_last=channels_last)
    assert result.dtype == dtype
    assert torch.equal(result, table[torch.arange(3).view(1, 3, 1, 1), plain.long()])


@pytest.mark.alike
@runs
@pytest.mark.parametrize("steps", [(0, 0), (1, 1), (2, 1), (2, 2), (1, 2)])
def test_windows_at_every_offset_modulo_16_are_exact(steps, monkeypatch):
    """Both coordinates vary; the interpreter tests each value once."""
    from dali_compat.engine.planes import kernels

    made, size = RandomPlanes([(24, 23)], [steps]), (8, 7)
    begins = np.array([(top, left) for top in range(16) for left in range(16)])
    if not interpreted.ON_GPU:
        monkeypatch.setattr(kernels, "_BLOCK", 64)  # smaller than a window
        begins = begins[begins[:, 1] == 7 * begins[:, 0] % 16]
    made.planes = geometry.PlaneLocations(*(np.repeat(part, len(begins), 0) for part in made.planes))
    sizes, nothing = np.tile(size, (len(begins), 1)), np.zeros_like(begins)
    (image,) = made.images
    expected = tensors([image[top : top + size[0], left : left + size[1]] for top, left in begins.tolist()])
    assert torch.equal(made.rendered(Windows(begins, sizes, sizes, nothing, nothing), size), expected)


@runs
def test_resizes_alike_is_false_for_kernels_with_other_results(monkeypatch):
    """One wrong kernel shifts windows by a pixel, the other returns zeros."""
    from dali_compat.engine.planes import kernels

    assert engines.resizes_alike(torch.device(DEVICE))
    real_windows, one_pixel = geometry.Windows, np.array([0, 1])
    with monkeypatch.context() as patch:
        patch.setattr(
            engines, "Windows", lambda start, size, *rest: real_windows(start + one_pixel, size - one_pixel, *rest)
        )
        assert not engines.resizes_alike(torch.device(DEVICE))
    monkeypatch.setattr(kernels, "render", lambda *given: given[-1].zero_())
    assert not engines.resizes_alike(torch.device(DEVICE))


# ---- chains of transforms

MIXED = [(37, 51), (90, 33), (12, 12), (410, 4)]  # Pillow may resize the last one vertically first


def some_chain(rng, number):
    """Return a random chain of crops, resizes, flips, conversions and steps without kernels.

    ``number`` selects its first steps.
    """
    kind = rng.choice([v1, v2])
    on_tensors = kind is v2 and rng.random() < 0.6
    how = {"interpolation": rng.choice([InterpolationMode.BILINEAR, InterpolationMode.BICUBIC]), "antialias": True}
    size = rng.randint(3, 14), rng.randint(3, 14)
    nearest, lanczos = {"interpolation": InterpolationMode.NEAREST}, {"interpolation": InterpolationMode.LANCZOS}
    plain = {"antialias": False} if on_tensors else lanczos
    first = [
        (kind.RandomResizedCrop(size, (0.05, 1.0), **how),),
        (kind.Resize(rng.randint(4, 15), **how), kind.CenterCrop(size)),
        (kind.Resize(9, max_size=200, **how), kind.CenterCrop(16)),
        (kind.RandomCrop((4, 3)), kind.Resize(size, **how)),
        (kind.CenterCrop((20, 30)), kind.Resize(size, **how)),
        # no filter, or several output sizes
        (kind.RandomResizedCrop(size, (0.05, 1.0), **nearest),),
        (kind.Resize(rng.randint(4, 60), **nearest), kind.RandomVerticalFlip(), kind.CenterCrop((20, 5))),
        (kind.RandomHorizontalFlip(), kind.RandomResizedCrop(size, (0.05, 1.0), **how)),
        (kind.Pad((1, 2, 3, 4)), kind.RandomCrop((9, 7)), kind.RandomHorizontalFlip(1)),
        (kind.RandomCrop((4, 3)), kind.Resize(size, **plain)),
        (kind.Resize(4, **how),),
        (kind.ColorJitter(0.4), kind.RandomVerticalFlip()),
    ]
    later = [
        kind.RandomHorizontalFlip(),
        kind.RandomVerticalFlip(),
        kind.RandomCrop(3),
        kind.Pad(2),
        kind.Grayscale(3),
        kind.RandomApply([kind.RandomHorizontalFlip(), kind.CenterCrop(5)], 0.5),
        kind.RandomChoice([kind.RandomVerticalFlip(), kind.ColorJitter(0.4)]),
        kind.RandomOrder([kind.RandomHorizontalFlip(), kind.Pad(1)]),
    ]
    dtype, scale = rng.choice([torch.uint8, torch.float16, torch.float32, torch.float64]), rng.random() < 0.7
    last = [v2.ToImage(), v2.ToDtype(dtype, scale=scale)] if kind is v2 else [v1.ToTensor(), v1.Normalize(0.4, 0.3)]
    steps = [*first[number % len(first)], *rng.sample(later, rng.randint(0, 3)), *last, rng.choice(later[:2])]
    return kind.Compose([v2.ToImage()] * on_tensors + steps)


@pytest.mark.alike
@runs
@pytest.mark.parametrize("seed", range(12))
def test_any_chain_on_planes_equals_torchvision(seed):
    chain = some_chain(random.Random(seed), seed)
    plan = lower(translate(chain), Options(exact=True, channels_last=bool(seed % 2), gpu=True))
    made, rows = RandomPlanes(MIXED, [(2, 2), (0, 0), (1, 1), (2, 1)], seed), np.arange(len(MIXED))
    arrays = compute((*plan.planes, *plan.after), made.sizes, Randoms(seed, 0, len(rows)), rows)
    begin = len(plan.planes)
    result = PlanesProgram(plan, arrays[:begin], made.sizes)(made.bytes, made.planes)
    result = run_all(plan.after, result, arrays[begin:])
    assert len(result) == len(rows)
    for row, found in enumerate(result):
        expected = Image.fromarray(made.images[row])
        drawn = compute(plan.steps, made.sizes[[row]], Randoms(seed, row, 1), [0])
        for s, values in zip(plan.steps, drawn, strict=True):
            expected = apply(expected, s, row_of(values, 0))
        assert found.dtype == expected.dtype and torch.equal(found.cpu(), expected), chain

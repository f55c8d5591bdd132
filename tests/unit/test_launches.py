"""Two-launch kernels with a different operation per image (ops/operations).

They give the pixels of torch's kernels, which other tests compare with Pillow. Without a GPU, Triton's interpreter runs
them.
"""

import os
import sys
import threading

import interpreted
import numpy as np
import pytest
import torch
from torchvision import transforms as T

from dali_compat.ops import kernels, operations
from dali_compat.ops.draws import compute
from dali_compat.ops.operations import CODES, OPERATIONS
from dali_compat.ops.pixels.transform import is_fixed
from dali_compat.plan import ImageSpec
from dali_compat.randoms import Randoms
from dali_compat.translate import translate

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if interpreted.ON_GPU else "cpu")
runs = interpreted.runs


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    """Enable launches also on a CPU; return the number of images of each."""
    counts = []
    if interpreted.ON_GPU or interpreted.INTERPRETS:

        def counted(images, *given, by_triton=operations.by_triton):
            counts.append(len(images))
            return by_triton(images, *given)

        monkeypatch.setattr(operations, "by_triton", counted)
        monkeypatch.setattr(operations, "triton_agrees", lambda *key: True)
        monkeypatch.setattr(operations, "_has_triton", lambda device: True)
        if interpreted.INTERPRETS:  # the interpreter takes the same time for any block size
            monkeypatch.setattr(operations, "_BLOCK", 4096)
            monkeypatch.setattr(operations, "_TABLE_BLOCK", 4096)
    return counts


def photos(count: int, channels: int, height: int, width: int) -> torch.Tensor:
    """Return images of noise, of steps, of one color, and with few values."""
    rng = np.random.default_rng(height)
    made = rng.integers(0, 256, (count, channels, height, width), dtype=np.uint8)
    made[1::4] = np.linspace(0, 255, width, dtype=np.uint8)
    made[2::4] = rng.integers(0, 256, (len(made[2::4]), channels, 1, 1), dtype=np.uint8)
    made[3::4] = made[3::4] // 50 * 7 + 90
    return torch.from_numpy(made)


def numbers_of(chosen, rng) -> np.ndarray:
    draw = {
        "posterize": lambda: rng.integers(0, 9),
        "solarize": lambda: rng.choice([0, 255, 256, 127.5, rng.uniform(0, 256)]),
        "solarize_add": lambda: rng.uniform(0, 128),
        "hue": lambda: rng.uniform(-0.5, 0.5),
    }
    numbers = np.zeros((len(chosen), 6))
    for row, code in zip(numbers, chosen, strict=True):
        name = OPERATIONS[code]
        row[0] = draw.get(name, lambda: rng.choice([0.0, 1.0, rng.uniform(0, 2)]))()
        if name == "warp":
            row[:] = rng.normal((1, 0, 0, 0, 1, 0), (0.3, 0.3, 5, 0.3, 0.3, 5))
    return numbers


def both(images, chosen, numbers, **how):
    """Return the results of the launches and of torch."""
    made = operations.run(images.to(DEVICE), chosen, numbers, like="pil", **how)
    modes = np.zeros(len(images), np.int64) + how.get("interpolations", 0)
    return made.cpu(), operations.by_torch(images, chosen, numbers, modes, how.get("fill"), how.get("area"))


@pytest.mark.alike
@runs
@pytest.mark.parametrize("channels, height, width", [(3, 45, 61), (1, 45, 61), (3, 1, 1), (3, 2, 7), (1, 3, 3)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_launched_operation_equals_torch(name, channels, height, width, launches):
    images, chosen = photos(6, channels, height, width), np.full(6, CODES[name])
    given = {"interpolations": np.arange(6) % 3, "fill": (3, 250, 117)[:channels]}
    made, wanted = both(images, chosen, numbers_of(chosen, np.random.default_rng(7)), **given)
    for row, (image, other) in enumerate(zip(made, wanted, strict=True)):
        assert torch.equal(image, other), row
    assert launches == ([] if name == "identity" else [6])


@runs
@pytest.mark.parametrize("seed", range(2))
def test_launch_with_a_different_operation_per_image_equals_torch(seed, launches):
    rng, layout = np.random.default_rng(seed), (torch.contiguous_format, torch.channels_last)[seed % 2]
    images = photos(40, 3, 37, 53).contiguous(memory_format=layout)
    chosen, before = rng.integers(0, len(OPERATIONS), 40), images.clone()
    given = {"interpolations": rng.integers(0, 3, 40), "fill": (9, 8, 7)}
    made, wanted = both(images, chosen, numbers_of(chosen, rng), **given)
    assert torch.equal(made, wanted) and torch.equal(images, before) and launches == [40]


@runs
def test_launch_with_unaligned_images_equals_torch(launches):
    """Images in a list need not start at a multiple of 16 bytes."""
    given = photos(7, 3, 15, 17).to(DEVICE)
    chosen = np.array([CODES[name] for name in ("equalize", "contrast", "warp", "sharpness", "hue", "saturation")])
    numbers = numbers_of(chosen, np.random.default_rng(1))
    made, wanted = both(given[1:].cpu(), chosen, numbers)
    assert given[1:].data_ptr() % 16
    unaligned = operations.run(given[1:], chosen, numbers, like="pil")
    assert torch.equal(made, wanted) and torch.equal(unaligned.cpu(), wanted)


@runs
def test_contrast_with_area_ignores_the_frame(launches):
    images = photos(4, 3, 20, 30)
    images[:, :, 15:] = 0
    made, wanted = both(images, np.full(4, CODES["contrast"]), np.full((4, 6), 0.4), area=np.full(4, 15 * 30))
    assert torch.equal(made, wanted) and launches == [4]


ROWS = [
    ([1, 0, 5, 0, 1, -3], True),  # a translation by whole pixels
    ([1, 0, 5.3, 0, 1, -3], False),  # coordinates are accumulated
    ([0.7, 0, 5, 0, 1.2, -3], False),
    ([0.7, 0.1, 5, 0.2, 1.2, -3], True),
    ([1, 0.1, 40000, 0.2, 1, -3], False),  # beyond 16.16
    ([1, 0, 40000, 0, 1, -3], False),
]


@runs
def test_warps_with_accumulated_coordinates_equal_torch(launches):
    matrices = np.array([row for row, _ in ROWS], float)
    images, chosen = photos(len(ROWS), 3, 33, 47), np.full(len(ROWS), CODES["warp"])
    assert is_fixed(matrices, (33, 47)).tolist() == [fixed for _, fixed in ROWS]
    made, wanted = both(images, chosen, matrices, fill=(1, 2, 3))
    assert torch.equal(made, wanted)


@runs
@pytest.mark.parametrize(
    "transform",
    [
        T.RandAugment(4, 20),
        T.RandAugment(interpolation=T.InterpolationMode.BICUBIC, fill=[7, 8, 9]),
        T.TrivialAugmentWide(interpolation=T.InterpolationMode.BILINEAR),
        T.AutoAugment(),
        T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    ],
    ids=str,
)
def test_transforms_with_launches_equal_torch(transform, launches, monkeypatch):
    images = photos(12, 3, 64, 48)
    spec = ImageSpec(size=(64, 48), channels=3)
    steps = translate(transform, spec).translated[0].steps
    arrays = compute(steps, np.tile((64, 48), (12, 1)), Randoms(5, 0, 12), slice(None))

    def transformed(given):
        for step, values in zip(steps, arrays, strict=True):
            given = kernels.run(step, given, values)
        return given.cpu()

    made = transformed(images.to(DEVICE))
    assert launches
    monkeypatch.setattr(operations, "_has_triton", lambda device: False)
    assert torch.equal(made, transformed(images))


# ---- availability


@interpreted.elsewhere
def test_kernels_compile_for_hopper_without_fused_multiply_add():
    """Compile for an H100, which need not be present, because the interpreter does not check types.

    A fused multiply-add would be rounded once. Kernels are not recompiled for other offsets or sizes of images.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from dali_compat.ops.operations import kernels as of_triton

    pointers = {"images": "*u8", "out": "*u8", "rows": "*fp64", "tables": "*u8", "made": "*u8"}
    pointers |= {"hue_of": "*i32", "range_of": "*i32", "saturation_of": "*i32", "weights": "*fp32"}
    constants = {"channels": 3, "block": 256}
    for kernel in (of_triton.levels, of_triton.operate):
        kinds = {name: pointers.get(name, "constexpr" if name in constants else "i32") for name in kernel.arg_names}
        made = compile(
            ASTSource(kernel, kinds, constants),
            target=GPUTarget("cuda", 90, 32),
            options={"enable_fp_fusion": False},
        )
        assert "fma" not in made.asm["ptx"] and "st.local" not in made.asm["ptx"]
        assert {"images", "height", "width"} <= {one.name for one in kernel.params if one.do_not_specialize}


@pytest.fixture
def no_results_cached(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(operations, "_agreement", {})


@runs
@pytest.mark.parametrize("channels", [1, 3])
def test_launches_are_compared_once(no_results_cached, channels, monkeypatch):
    calls = []

    def counted(*given, by_torch=operations.by_torch):
        calls.append(len(given[0]))
        return by_torch(*given)

    monkeypatch.setattr(operations, "by_torch", counted)
    assert [operations.triton_agrees(DEVICE, channels) for _ in range(2)] == [True] * 2 and len(calls) == 1


@pytest.mark.parametrize("channels", [1, 3])
def test_comparison_changes_the_image_with_each_operation(channels, monkeypatch):
    """So that an operation without effect is noticed."""
    monkeypatch.setattr(operations, "by_triton", lambda images, *given: images)
    given, made = operations.compared(torch.device("cpu"), channels)
    names = [*OPERATIONS, "warp", "warp"]
    same = {name for name, one, other in zip(names, made, given, strict=True) if torch.equal(one, other)}
    assert same == ({"identity"} if channels == 3 else {"identity", "hue", "saturation"})
    assert len({one.numpy().tobytes() for one in made[-3:]}) == 3


@runs
def test_launches_with_wrong_pixels_are_refused(no_results_cached, caplog, monkeypatch):
    def off(images, *given, by_torch=operations.by_torch):
        made = by_torch(images, *given)
        made[CODES["autocontrast"]] = images[CODES["autocontrast"]]
        return made

    monkeypatch.setattr(operations, "by_torch", off)
    with caplog.at_level("INFO", "dali_compat"):
        assert not operations.triton_agrees(DEVICE, 1)
    assert "without Triton kernels: their results differ from torch's" in caplog.text


def test_launches_without_triton_are_refused(no_results_cached, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "dali_compat.ops.operations.kernels", None)
    with caplog.at_level("INFO", "dali_compat"):
        assert not operations.triton_agrees(torch.device("cpu"), 3)
    assert "without Triton kernels: ModuleNotFoundError" in caplog.text


@runs
def test_large_image_is_processed_by_torch(launches):
    images, chosen = torch.zeros(1, 1, 1025, 1024, dtype=torch.uint8, device=DEVICE), np.array([CODES["invert"]])
    assert operations.run(images, chosen, np.zeros((1, 6)), like="pil").eq(255).all() and launches == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_waits_for_the_compiler(no_results_cached):
    begins, goes_on = threading.Event(), threading.Event()

    def reference(*given):
        begins.set()
        goes_on.wait(60)
        raise RuntimeError("no compiler")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "by_triton", lambda images, *given: images)
        patch.setattr(operations, "by_torch", reference)
        thread = threading.Thread(target=operations.triton_agrees, args=(torch.device("cpu"), 3))
        thread.start()
        assert begins.wait(60)
        threading.Timer(1.5, goes_on.set).start()  # longer than locks.py waits for any other lock
        pid = os.fork()
        if not pid:
            os._exit(int(not goes_on.is_set()))
        assert os.waitpid(pid, 0)[1] == 0
        thread.join()

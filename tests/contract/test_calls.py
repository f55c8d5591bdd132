"""Functions without a translation in worker processes: results, errors and costs."""

import os
import random
import resource
import time

import numpy as np
import pytest
import torch
from torchvision import transforms as T
from torchvision import tv_tensors

from contract.both import assert_same_pixels, error_of, stock
from dali_compat import DALIArrayDataset, DALIImageFolder, DataLoader

TO_TENSOR = T.Compose([T.CenterCrop(40), T.PILToTensor()])


def _loader(root, transform, *args, **options):
    return DataLoader(
        DALIImageFolder(root, transform), *args, fallback="silent", device="cpu", num_workers=2, **options
    )


class _UnpicklableError(Exception):
    """An exception that cannot be unpickled, such as botocore's ClientError."""

    def __init__(self, what, which):
        super().__init__(f"{what} of {which}")


def _fail_on_the_gray_image(image):
    """Raise for the first image of make_folder()."""
    red, green, _ = image.split()
    if red.tobytes() == green.tobytes():
        raise _UnpicklableError("trouble", "mine")
    return image.rotate(5)


def test_an_error_that_cannot_be_pickled_is_raised_with_its_text(image_root):
    """The error has its text and traceback as in torch, and the later batches are complete."""
    for loader in (
        _loader(image_root, T.Compose([_fail_on_the_gray_image, TO_TENSOR]), 6),
        stock(DALIImageFolder(image_root, T.Compose([_fail_on_the_gray_image, TO_TENSOR])), 6, num_workers=2),
    ):
        for _ in range(2):
            iterator = iter(loader)
            error = error_of(next, iterator)
            assert type(error) is RuntimeError and "Caught _UnpicklableError in DataLoader worker process" in str(error)
            assert "trouble of mine" in str(error) and "_fail_on_the_gray_image" in str(error)
            assert [len(batch[1]) for batch in iterator] == [6, 6, 6]


def _failing_init(number):
    raise LookupError(f"no worker {number}")


def test_an_error_of_worker_init_fn_names_the_function(image_root):
    error = error_of(list, _loader(image_root, T.Compose([_rotate, TO_TENSOR]), 6, worker_init_fn=_failing_init))
    assert type(error) is LookupError and "no worker" in str(error) and "_failing_init" in str(error)


def _rotate(image):
    return image.rotate(5)


def _exit_process(image):
    os._exit(1)


def test_a_worker_that_exits_is_an_error_in_each_epoch(image_root):
    loader = _loader(image_root, T.Compose([_exit_process, TO_TENSOR]), 6)
    for _ in range(2):
        error = error_of(next, iter(loader))
        assert type(error) is RuntimeError and "exited unexpectedly" in str(error)


class _TwoViews:
    def __call__(self, image):
        return TO_TENSOR(image), TO_TENSOR(image.rotate(90))


class _AsDict:
    def __call__(self, views):
        return {"views": views, "label": tv_tensors.Image(views[0]), "name": "x"}


def test_many_views_need_few_descriptors(image_root):
    """Send two views to a second function and back: 2 * 240 tensors per batch, two batches ahead."""
    dataset = DALIImageFolder(image_root, T.Compose([_TwoViews(), _AsDict()]))
    sampler = list(range(24)) * 30
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    loader = DataLoader(dataset, 240, sampler=sampler, fallback="silent", device="cpu", num_workers=2)
    next(iter(loader))  # builds DALI's pipeline
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, before[1]))  # DALI uses 240
    try:
        mine = [batch[0] for batch in loader]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    theirs = [batch[0] for batch in stock(dataset, 240, sampler=sampler)]
    for i in (0, 1):
        assert_same_pixels([batch["views"][i] for batch in mine], [batch["views"][i] for batch in theirs])
    assert_same_pixels([batch["label"] for batch in mine], [batch["label"] for batch in theirs])


VALUES_OF_MANY_KINDS = [
    torch.arange(7, dtype=torch.uint8),
    torch.tensor(2.5, dtype=torch.float64),
    torch.empty(0, 3),
    torch.tensor([True, False, True]),
    torch.arange(12.0).reshape(3, 4).t(),
    torch.ones(4, dtype=torch.complex64),
    tv_tensors.Image(torch.arange(12, dtype=torch.uint8).reshape(3, 2, 2)),
    tv_tensors.BoundingBoxes(torch.ones(1, 4), format="XYXY", canvas_size=(9, 9)),
    torch.ones(2, requires_grad=True),
    torch.eye(3).to_sparse(),
]


# ---- shared memory


class _ResizeByPixel:
    """Resize each image to another size."""

    def __call__(self, image):
        side = 8 + image.getpixel((3, 3))[0] % 32
        return image.resize((side, 40 + side))


ODD = T.Compose([T.CenterCrop(48), _ResizeByPixel(), T.PILToTensor()])
ROTATED = T.Compose([T.CenterCrop(41), _rotate, T.PILToTensor()])
TENSORS = T.Compose([T.CenterCrop(41), T.ToTensor(), torch.neg, T.Normalize(0.5, 0.25)])
RAGGED = T.Compose([_rotate, T.CenterCrop(40), T.PILToTensor()])
BFLOATS = T.Compose([T.CenterCrop(41), T.PILToTensor(), T.ConvertImageDtype(torch.bfloat16), torch.neg])


@pytest.mark.alike
@pytest.mark.parametrize(
    ("transform", "context"), [*((t, "fork") for t in (ROTATED, TENSORS, RAGGED, ODD, BFLOATS)), (ROTATED, "spawn")]
)
def test_batches_from_shared_memory_stay_unchanged_when_kept(image_root, transform, context):
    """Allow 1e-6 for to_dtype and for normalize in DALI."""
    dataset = DALIImageFolder(image_root, transform)
    sampler = list(range(24)) * 3
    options = dict(batch_size=7, sampler=sampler, collate_fn=list if transform is ODD else None)
    loader = _loader(image_root, transform, multiprocessing_context=context, **options)
    mine, theirs = [*loader, *(loader if context == "fork" else ())], [*stock(dataset, **options)]
    for a, b in zip(mine, theirs * (2 if context == "fork" else 1), strict=True):
        both = ([image for image, _ in batch] if transform is ODD else batch[0] for batch in (a, b))
        for x, y in zip(*both, strict=True):
            assert x.dtype == y.dtype
            torch.testing.assert_close(x, y, rtol=0, atol=2e-6 if transform is TENSORS else 0)


class _KeepsImages:
    """Fail if an image of an earlier call has changed."""

    def __init__(self):
        self.kept = []

    def __call__(self, image):
        assert all(torch.equal(one, copy) for one, copy in self.kept)
        self.kept.append((image, image.clone()))
        return image


def test_images_that_a_function_keeps_do_not_change(image_root):
    transform = T.Compose([T.CenterCrop(41), T.PILToTensor(), _KeepsImages()])
    assert len(list(_loader(image_root, transform, 4, sampler=list(range(24)) * 3))) == 18


CPU = torch.device("cpu")


def files(slots) -> set[int]:
    """Return the inodes; a file descriptor may be reused."""
    return {os.fstat(slot._fd).st_ino for slot in slots}


class _WritesItsSeed:
    """A worker_init_fn that writes the worker's seed to a file."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, number):
        info = torch.utils.data.get_worker_info()
        new = self.folder / f"{number}.new"
        new.write_text(f"{info.seed} {info.id} {info.num_workers}")
        new.rename(self.folder / f"part.{number}")


def test_worker_info_has_a_different_seed_in_each_worker(image_root, tmp_path):
    """Users seed their libraries with it."""
    loader = _loader(image_root, ROTATED, 6, worker_init_fn=_WritesItsSeed(tmp_path), persistent_workers=True)
    until = time.monotonic() + 60
    while (
        len(list(tmp_path.glob("part.*"))) < 2 and time.monotonic() < until
    ):  # one worker may be ready before the other
        list(loader)
    loader.close()
    first, second = ([int(word) for word in (tmp_path / f"part.{n}").read_text().split()] for n in (0, 1))
    assert second[0] == first[0] + 1 and (first[1:], second[1:]) == ([0, 2], [1, 2])


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_format_is_kept_after_a_function(image_root, workers):
    dataset = DALIImageFolder(image_root, ROTATED)
    options = dict(fallback="silent", device="cpu", num_workers=workers)
    for images, _ in DataLoader(dataset, 6, memory_format=torch.channels_last, **options):
        assert images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()


# ---- several views


def _stack(crops):
    return torch.stack([T.functional.pil_to_tensor(crop) for crop in crops])


def _second_crop(crops):
    return crops[1]


def _pixel_values(image):
    return torch.tensor(image.getpixel((3, 3)), dtype=torch.float64)


def _ones_of_varying_length(image):
    return torch.ones(2 if image.getpixel((3, 3))[0] % 2 else 3)


@pytest.mark.parametrize(
    "functions, workers", [([_pixel_values], 0), ([T.FiveCrop(20), _stack], 2), ([T.TenCrop(24), _stack], 0)]
)
def test_tensors_other_than_images_are_stacked_or_passed_to_collate_fn(image_root, functions, workers):
    dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), *functions]))
    options = dict(sampler=list(range(24)) * 2, num_workers=workers)
    mine = DataLoader(dataset, 6, fallback="silent", device="cpu", **options)
    assert_same_pixels([b[0] for b in mine], [b[0] for b in stock(dataset, 6, **options)])
    mine.collate_fn = list
    for a, b in zip(mine, stock(dataset, 6, collate_fn=list, **options), strict=True):
        assert_same_pixels([image for image, _ in a], [image for image, _ in b])


def _ones_of_varying_dtype(image):
    return torch.ones(2, dtype=torch.int64 if image.getpixel((3, 3))[0] % 2 else torch.float16)


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_of_different_dtypes_reach_collate_fn_unchanged(image_root, workers):
    dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), _ones_of_varying_dtype]))
    options = dict(num_workers=workers, collate_fn=list)
    (mine,), (theirs,) = (
        list(make(dataset, 24, **options))
        for make in (lambda *a, **o: DataLoader(*a, fallback="silent", device="cpu", **o), stock)
    )
    assert [image.dtype for image, _ in mine] == [image.dtype for image, _ in theirs]
    assert len({image.dtype for image, _ in mine}) == 2


def test_tensors_that_cannot_be_stacked_raise_torchs_error(image_root):
    mine, theirs = (
        error_of(
            list,
            make(
                DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), _ones_of_varying_length])), 12, num_workers=2
            ),
        )
        for make in (lambda *a, **o: DataLoader(*a, fallback="silent", device="cpu", **o), stock)
    )
    assert type(mine) is type(theirs) is RuntimeError and str(theirs).splitlines()[-1] in str(mine)


@pytest.mark.parametrize("crops", [T.FiveCrop(24), T.TenCrop(24, vertical_flip=True)])
def test_five_and_ten_crops_before_a_function_equal_torchs(image_root, crops):
    for last in ([_stack], [_second_crop, T.PILToTensor()]):
        dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), crops, *last]))
        loader = _loader(image_root, dataset.transform, 6)
        assert_same_pixels([b[0] for b in loader], [b[0] for b in stock(dataset, 6)])


class _RecordsDraws:
    """Record random numbers from three generators."""

    def __init__(self, drawn):
        self.drawn = drawn

    def __call__(self, image):
        self.drawn.append((torch.rand(()).item(), random.random(), np.random.rand()))
        return image


@pytest.mark.parametrize(
    "between", [T.RandomHorizontalFlip(), T.Compose([])], ids=["a random transform", "nothing to do"]
)
def test_functions_of_one_sample_draw_different_numbers(image_root, between):
    """This includes target_transform and collate_fn. With equal numbers, two coin flips would always agree."""
    functions, target, collate = [_RecordsDraws([]) for _ in range(2)], _RecordsDraws([]), _RecordsDraws([])

    def collated(samples):
        return collate(torch.utils.data.default_collate(samples))

    transform = T.Compose([functions[0], between, functions[1], TO_TENSOR])
    dataset = DALIImageFolder(image_root, transform, target_transform=target)
    list(DataLoader(dataset, 1, collate_fn=collated, fallback="silent", device="cpu"))
    all_drawn = [one.drawn for one in (*functions, target, collate)]
    assert [len(drawn) for drawn in all_drawn] == [len(dataset)] * 4
    for numbers in zip(*(sum(drawn, ()) for drawn in all_drawn), strict=True):
        assert len(set(numbers)) == 4


class _Strength:
    """A transform changed by the training loop."""

    value = called = 0

    def __call__(self, image):
        self.called += 1
        return T.functional.pil_to_tensor(image) * 0 + self.value


@pytest.mark.parametrize("make", [stock, lambda *args: DataLoader(*args, fallback="silent", device="cpu")])
@pytest.mark.parametrize("arrays", [False, True], ids=["files", "arrays"])
def test_without_workers_a_function_sees_changes_made_by_the_loop(image_root, make, arrays):
    """The function is called when its batch is requested."""
    strength = _Strength()
    transform = T.Compose([T.CenterCrop(20), strength])
    pictures = np.zeros((24, 30, 30, 3), np.uint8)
    dataset = DALIArrayDataset(pictures, range(24), transform) if arrays else DALIImageFolder(image_root, transform)
    seen = []
    for images, _ in make(dataset, 6):
        seen.append((strength.called, images.unique().tolist()))
        strength.value += 1
    assert seen == [(6, [0]), (12, [1]), (18, [2]), (24, [3])]

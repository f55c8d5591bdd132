"""Functions without a translation, in worker processes: their results, their errors, and what they cost."""

import os
import resource

import torch
from dali_compat import DALIImageFolder, DataLoader
from dali_compat.parcel import parcel
from torchvision import transforms as T
from torchvision import tv_tensors

from contract.both import assert_same_pixels, error_of, stock

TO_TENSOR = T.Compose([T.CenterCrop(40), T.PILToTensor()])


def _loader(root, transform, *args, **options):
    return DataLoader(
        DALIImageFolder(root, transform), *args, fallback="silent", device="cpu", num_workers=2, **options
    )


class _Odd(Exception):
    """As botocore's ClientError: pickle cannot make it again."""

    def __init__(self, what, which):
        super().__init__(f"{what} of {which}")


def _fails_on_the_gray_one(image):
    """The first image of make_folder()."""
    red, green, _ = image.split()
    if red.tobytes() == green.tobytes():
        raise _Odd("trouble", "mine")
    return image.rotate(5)


def test_an_error_that_cannot_be_pickled(image_root):
    """It comes with its text and traceback, as torch's does; the batches after it come all the same."""
    for loader in (
        _loader(image_root, T.Compose([_fails_on_the_gray_one, TO_TENSOR]), 6),
        stock(DALIImageFolder(image_root, T.Compose([_fails_on_the_gray_one, TO_TENSOR])), 6, num_workers=2),
    ):
        for _ in range(2):
            iterator = iter(loader)
            error = error_of(next, iterator)
            assert type(error) is RuntimeError and "Caught _Odd in DataLoader worker process" in str(error)
            assert "trouble of mine" in str(error) and "_fails_on_the_gray_one" in str(error)
            assert [len(batch[1]) for batch in iterator] == [6, 6, 6]


def _bad_init(number):
    raise LookupError(f"no worker {number}")


def test_an_error_of_worker_init_fn(image_root):
    """It is the user's, and says where it comes from."""
    error = error_of(list, _loader(image_root, T.Compose([_rotate, TO_TENSOR]), 6, worker_init_fn=_bad_init))
    assert type(error) is LookupError and "no worker" in str(error) and "_bad_init" in str(error)


def _rotate(image):
    return image.rotate(5)


def _die(image):
    os._exit(1)


def test_a_dead_worker(image_root):
    loader = _loader(image_root, T.Compose([_die, TO_TENSOR]), 6)
    for _ in range(2):
        error = error_of(next, iter(loader))
        assert type(error) is RuntimeError and "worker process exited unexpectedly" in str(error)


class _Views:
    def __call__(self, image):
        return TO_TENSOR(image), TO_TENSOR(image.rotate(90))


class _Both:
    def __call__(self, views):
        return {"views": views, "label": tv_tensors.Image(views[0]), "name": "x"}


def test_many_views_need_few_descriptors(image_root):
    """A pair of views each, to a second function and back: 2 * 240 tensors a batch, two batches ahead."""
    dataset = DALIImageFolder(image_root, T.Compose([_Views(), _Both()]))
    sampler = list(range(24)) * 30
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    loader = DataLoader(dataset, 240, sampler=sampler, fallback="silent", device="cpu", num_workers=2)
    next(iter(loader))  # DALI's pipeline is built
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, before[1]))  # 240 are DALI's
    try:
        mine = [batch[0] for batch in loader]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    theirs = [batch[0] for batch in stock(dataset, 240, sampler=sampler)]
    for i in (0, 1):
        assert_same_pixels([batch["views"][i] for batch in mine], [batch["views"][i] for batch in theirs])
    assert_same_pixels([batch["label"] for batch in mine], [batch["label"] for batch in theirs])


VALUES = [
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


def test_a_parcel_gives_what_went_in():
    same = torch.ones(2)
    made = parcel([VALUES, {"same": same, "other": (same, "text", None)}]).unpack()
    for value, one in zip(VALUES, made[0], strict=True):
        assert type(one) is type(value) and one.dtype == value.dtype and one.requires_grad == value.requires_grad
        assert one.shape == value.shape and torch.equal(one.to_dense(), value.to_dense())
    assert made[1]["same"] is made[1]["other"][0] and made[1]["other"][1:] == ("text", None)
    assert parcel(["no tensors"]).unpack() == ["no tensors"]


def test_a_result_that_cannot_be_pickled(image_root):
    loader = _loader(image_root, lambda image: lambda: image, 6, collate_fn=list)
    for _ in range(2):
        assert "lambda" in str(error_of(next, iter(loader)))

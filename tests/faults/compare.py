"""Files through torchvision's ImageFolder and PIL, and through our DataLoader: accepted or not, and the pixels."""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader as StockLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from dali_compat import DataLoader

AGREED, ACCEPTED, REJECTED, PIXELS, CRASHED = "agreed", "accepted", "rejected", "pixels", "crashed"
MEANING = {
    ACCEPTED: "accepted though torchvision rejects",
    REJECTED: "rejected though torchvision accepts",
    PIXELS: "other pixels",
    CRASHED: "crash or hang of the process",
}
WINDOW = 16
EPOCHS, MANY = 3, 100  # by a JPEG engine; files, some of which it takes
# levels: a GPU's decoder makes about the same picture, without libjpeg's interpolation of chroma; another one, 40
MEAN = 8.0


@dataclasses.dataclass
class Found:
    """What came of one file.

    Attributes:
        file: its name.
        outcome: AGREED, or one of MEANING.
        text: what it is; the error, if there is one.
        mean, max: difference of the pixels, in levels.
    """

    file: str
    outcome: str
    text: str = ""
    mean: float = 0.0
    max: float = 0.0


def one_by_one(loader, count: int) -> Iterator:
    """What each batch gives: images, or the exception."""
    batches = iter(loader)
    for _ in range(count):
        try:
            yield next(batches)
        except StopIteration:
            raise AssertionError("the loader has ended early") from None
        except Exception as error:
            yield error


def settle(device: str) -> None:
    """The GPU's JPEG engine has compared whatever it was asked to."""
    from dali_compat.engine.planes.engines import engine_of

    engine = engine_of(torch.device(device, torch.cuda.current_device()))
    assert not isinstance(engine, str), engine
    engine.settle(60)


def _images_and_labels(samples: list) -> tuple[list, list]:
    return [image for image, _ in samples], [label for _, label in samples]


def _folder(root: Path, transform) -> ImageFolder:
    return ImageFolder(root, transform, is_valid_file=lambda path: True)


def expected(root: Path) -> list[torch.Tensor | None]:
    """torchvision's pixels (3, H, W) of each file, None of those that it rejects."""
    loader = StockLoader(_folder(root, T.PILToTensor()), collate_fn=_images_and_labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(one_by_one(loader, len(loader)))
    return [None if isinstance(one, Exception) else one[0][0] for one in found]


def ours(root: Path, batches: list[list[int]], transform, device: str, exact: bool) -> DataLoader:
    """Gives (images, labels) of each batch."""
    return DataLoader(
        _folder(root, transform), batch_sampler=batches, collate_fn=_images_and_labels,
        device=device, exact=exact, fallback="error",
    )  # fmt: skip


def compare(
    root: Path,
    device: str = "cpu",
    exact: bool = True,
    window: bool = False,
    together: int = 6,
    damaged: bool | set = True,
    engine: bool = False,
) -> Iterator[Found]:
    """Of each file below ``root``, a folder of classes: whether both loaders say the same.

    Args:
        exact: pixels are the same; without, a GPU makes others of what is damaged, and similar ones of what is not.
        damaged: the names of the files that are; True: all of them.
        window: decode WINDOW x WINDOW pixels of each alone; files that torchvision finds smaller are left out.
        together: files that torchvision accepts come in batches of so many, all others alone.
        engine: the GPU's JPEG engine is used, and files come again, in other batches, when it is known what it makes
            of each: some more windows.
    """
    samples = _folder(root, None).samples
    theirs = expected(root)
    good = [i for i, image in enumerate(theirs) if image is not None and not (window and min(image.shape[1:]) < WINDOW)]
    bad = [i for i, image in enumerate(theirs) if image is None]
    transform = T.Compose([T.RandomCrop(WINDOW), T.PILToTensor()]) if window else T.PILToTensor()
    batches: list[list[int]] = []
    loader, alone = ours(root, batches, transform, device, exact), list(bad)
    for epoch in range(EPOCHS if engine else 1):
        random.Random(epoch).shuffle(good)  # batches of good files mix the formats
        batches[:] = [good[i : i + together] for i in range(0, len(good), together)]
        for batch, made in zip(batches, one_by_one(loader, len(batches)), strict=True):
            if isinstance(made, Exception):
                alone += batch  # which of them?
                continue
            yield from _judged(batch, made, samples, theirs, exact, damaged)
        if engine:
            settle(device)
    if engine and len(good) > MANY and "the JPEG engine decodes 0 files" in loader.explain():
        raise AssertionError("the engine has decoded nothing")
    loader = ours(root, [[i] for i in alone], transform, device, exact)
    for i, made in zip(alone, one_by_one(loader, len(alone)), strict=True):
        name = Path(samples[i][0]).name
        if isinstance(made, Exception):
            yield Found(name, AGREED if theirs[i] is None else REJECTED, str(made))
        elif theirs[i] is None:
            yield Found(name, ACCEPTED)
        else:
            yield from _judged([i], made, samples, theirs, exact, damaged)


def _judged(
    batch: list[int], made: tuple, samples: list, theirs: list, exact: bool, damaged: bool | set
) -> Iterator[Found]:
    for i, image, label in zip(batch, *made, strict=True):
        name, image = Path(samples[i][0]).name, image.cpu()
        if label != samples[i][1]:
            yield Found(name, PIXELS, f"label {label} instead of {samples[i][1]}")
        elif image.shape != theirs[i].shape and image.shape[1:] != (WINDOW, WINDOW):
            yield Found(name, PIXELS, f"shape {tuple(image.shape)} instead of {tuple(theirs[i].shape)}", 255, 255)
        elif exact or not (damaged is True or name in damaged):
            difference = _difference(image, theirs[i])
            mean, largest = float(difference.mean()), float(difference.max())
            wrong = largest > 0 if exact else mean > MEAN
            yield Found(name, PIXELS if wrong else AGREED, "", mean, largest)
        else:
            yield Found(name, AGREED)


def _difference(image: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """In levels; of a window, to the place where it fits best."""
    if image.shape == whole.shape:
        return (image.float() - whole.float()).abs()
    windows = np.lib.stride_tricks.sliding_window_view(whole.numpy(), image.shape)[0]
    if _is_among(image.numpy(), windows):
        return torch.zeros(1)
    windows = windows[:100, :100]  # of large pictures not all, for the memory's sake
    difference = np.abs(windows.astype(np.int16) - image.numpy().astype(np.int16)).reshape(*windows.shape[:2], -1)
    sums = difference.sum(-1, dtype=np.int64)
    return torch.from_numpy(difference[np.unravel_index(sums.argmin(), sums.shape)]).float()


def _is_among(image: np.ndarray, windows: np.ndarray) -> bool:
    """Whether one of the windows (Y, X, 3, H, W) is the image. Some pixels leave few of them in question."""
    y, x = np.indices(windows.shape[:2]).reshape(2, -1)
    for i in range(WINDOW):
        row, column = i, 5 * i % WINDOW
        same = (windows[y, x, :, row, column] == image[:, row, column]).all(1)
        y, x = y[same], x[same]
    some = (slice(begin, begin + 1000) for begin in range(0, len(y), 1000))
    return any((windows[y[part], x[part]] == image).all((1, 2, 3)).any() for part in some)


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)

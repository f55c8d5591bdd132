"""Compare torchvision's ImageFolder with our DataLoader: files accepted or rejected, and pixels."""

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
EPOCHS, MANY = 3, 100  # epochs with a JPEG engine; it must decode some files if there are more than MANY
# In levels. A GPU decodes to about the same pixels, without libjpeg's chroma interpolation. Other images differ by 40.
MEAN = 8.0


@dataclasses.dataclass
class FileResult:
    """The result for one file.

    Attributes:
        file: the name of the file.
        outcome: AGREED, or a key of MEANING.
        text: description, including the error, if any.
        mean, max: difference of the pixels, in levels.
    """

    file: str
    outcome: str
    text: str = ""
    mean: float = 0.0
    max: float = 0.0


def one_by_one(loader, count: int) -> Iterator:
    """Yield each batch, or the exception in its place."""
    batches = iter(loader)
    for _ in range(count):
        try:
            yield next(batches)
        except StopIteration:
            raise AssertionError("the loader has ended early") from None
        except Exception as error:
            yield error


def settle(device: str) -> None:
    """Wait until the GPU's JPEG engine has finished its comparisons."""
    from dali_compat.engine.planes.engines import engine_of

    engine = engine_of(torch.device(device, torch.cuda.current_device()))
    assert not isinstance(engine, str), engine
    engine.wait_for_comparisons(60)


def _images_and_labels(samples: list) -> tuple[list, list]:
    return [image for image, _ in samples], [label for _, label in samples]


def _folder(root: Path, transform) -> ImageFolder:
    return ImageFolder(root, transform, is_valid_file=lambda path: True)


def expected(root: Path) -> list[torch.Tensor | None]:
    """Return torchvision's pixels (3, H, W) of each file, or None if it is rejected."""
    loader = StockLoader(_folder(root, T.PILToTensor()), collate_fn=_images_and_labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(one_by_one(loader, len(loader)))
    return [None if isinstance(one, Exception) else one[0][0] for one in found]


def ours(root: Path, batches: list[list[int]], transform, device: str, exact: bool) -> DataLoader:
    """Return a loader of (images, labels) for these batches."""
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
) -> Iterator[FileResult]:
    """Yield whether both loaders agree on each file below ``root``, a folder of classes.

    Args:
        exact: pixels must be equal. If False, a GPU may decode damaged files differently and intact ones similarly.
        damaged: the names of the damaged files, or True for all.
        window: decode only WINDOW x WINDOW pixels of each; smaller files are excluded.
        together: batch size for files that torchvision accepts. Other files are read one by one.
        engine: use the GPU's JPEG engine, and read the files again in other batches and windows after the engine has
            been compared.
    """
    samples = _folder(root, None).samples
    theirs = expected(root)
    good = [i for i, image in enumerate(theirs) if image is not None and not (window and min(image.shape[1:]) < WINDOW)]
    bad = [i for i, image in enumerate(theirs) if image is None]
    transform = T.Compose([T.RandomCrop(WINDOW), T.PILToTensor()]) if window else T.PILToTensor()
    batches: list[list[int]] = []
    loader, single = ours(root, batches, transform, device, exact), list(bad)
    for epoch in range(EPOCHS if engine else 1):
        random.Random(epoch).shuffle(good)  # batches of good files mix the formats
        batches[:] = [good[i : i + together] for i in range(0, len(good), together)]
        for batch, made in zip(batches, one_by_one(loader, len(batches)), strict=True):
            if isinstance(made, Exception):
                single += batch  # find the file by reading one by one
                continue
            yield from _compare_batch(batch, made, samples, theirs, exact, damaged)
        if engine:
            settle(device)
    if engine and len(good) > MANY and "the JPEG engine decodes 0 files" in loader.explain():
        raise AssertionError("the engine has decoded nothing")
    loader = ours(root, [[i] for i in single], transform, device, exact)
    for i, made in zip(single, one_by_one(loader, len(single)), strict=True):
        name = Path(samples[i][0]).name
        if isinstance(made, Exception):
            yield FileResult(name, AGREED if theirs[i] is None else REJECTED, str(made))
        elif theirs[i] is None:
            yield FileResult(name, ACCEPTED)
        else:
            yield from _compare_batch([i], made, samples, theirs, exact, damaged)


def _compare_batch(
    batch: list[int], made: tuple, samples: list, theirs: list, exact: bool, damaged: bool | set
) -> Iterator[FileResult]:
    for i, image, label in zip(batch, *made, strict=True):
        name, image = Path(samples[i][0]).name, image.cpu()
        if label != samples[i][1]:
            yield FileResult(name, PIXELS, f"label {label} instead of {samples[i][1]}")
        elif image.shape != theirs[i].shape and image.shape[1:] != (WINDOW, WINDOW):
            yield FileResult(name, PIXELS, f"shape {tuple(image.shape)} instead of {tuple(theirs[i].shape)}", 255, 255)
        elif exact or not (damaged is True or name in damaged):
            difference = _difference(image, theirs[i])
            mean, largest = float(difference.mean()), float(difference.max())
            wrong = largest > 0 if exact else mean > MEAN
            yield FileResult(name, PIXELS if wrong else AGREED, "", mean, largest)
        else:
            yield FileResult(name, AGREED)


def _difference(image: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Difference in levels. A window is compared with the position that fits best."""
    if image.shape == whole.shape:
        return (image.float() - whole.float()).abs()
    windows = np.lib.stride_tricks.sliding_window_view(whole.numpy(), image.shape)[0]
    if _is_among(image.numpy(), windows):
        return torch.zeros(1)
    windows = windows[:100, :100]  # only a part of large images, to limit memory
    difference = np.abs(windows.astype(np.int16) - image.numpy().astype(np.int16)).reshape(*windows.shape[:2], -1)
    sums = difference.sum(-1, dtype=np.int64)
    return torch.from_numpy(difference[np.unravel_index(sums.argmin(), sums.shape)]).float()


def _is_among(image: np.ndarray, windows: np.ndarray) -> bool:
    """Return True if one of the windows (Y, X, 3, H, W) equals the image. A few pixels exclude most windows."""
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

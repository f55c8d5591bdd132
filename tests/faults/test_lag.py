"""Correct batches while a GPU lags behind the host.

DALI must not overwrite the memory of dropped batches that are still in use, and next() must not wait.
"""

import gc

import pytest
import torch
from contract.both import EXACT, ours
from helpers import make_folder
from torch.utils.data import RandomSampler
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from dali_compat import DALIImageFolder
from faults.interrupts import ExpectedSamples

MILLISECONDS_20, A_SECOND = 40_000_000, 2_000_000_000  # cycles

# Their arguments exceed 64 KB in a batch of 128.
LARGE = [
    T.RandAugment(),
    T.RandAugment(interpolation=T.InterpolationMode.BILINEAR),
    T.TrivialAugmentWide(),
    T.RandomRotation(30),
    T.RandomPerspective(p=1),
    T.ElasticTransform(),
    T.Compose([T.GaussianBlur(23), T.Pad(9, padding_mode="reflect"), T.RandomCrop(224)]),
    T.Compose([T.ToTensor(), T.RandomErasing(p=1, value="random"), T.ToPILImage()]),
]


@pytest.mark.gpu
@pytest.mark.parametrize("options", [dict(), dict(num_workers=2)], ids=str)
def test_dropped_batches_are_intact_while_the_gpu_lags(tmp_path, options):
    """Each batch is summed after 20 ms of other work and dropped. The sums must equal those of torchvision's pixels."""
    dataset = DALIImageFolder(make_folder(tmp_path / "images", classes=2, per_class=8), EXACT, return_index=True)
    expected_samples = ExpectedSamples(dataset)
    sums = {name: image.sum().item() for name, image in expected_samples.images.items()}
    loader = ours(dataset, 2, shuffle=True, exact=True, device="cuda", **options)
    found = []
    for _ in range(10):
        for images, labels, indices in loader:
            torch.cuda._sleep(MILLISECONDS_20)
            found.append((images.sum((1, 2, 3), dtype=torch.int64), labels, indices))
            del images
    for batch in found:
        for total, label, index in zip(*(column.tolist() for column in batch), strict=True):
            assert total == sums[label, index]


def _images(samples: list) -> list[torch.Tensor]:
    return [image for image, _ in samples]


@pytest.mark.gpu
@pytest.mark.parametrize("engines", ["0", None], ids=["no engine", "engines"])
@pytest.mark.parametrize(
    "options",
    [
        dict(transform=T.Compose([T.RandomResizedCrop(224), T.ToTensor(), T.Normalize([0.5], [0.25])])),
        dict(transform=T.PILToTensor(), collate_fn=_images),
        dict(transform=T.PILToTensor(), collate_fn=_images, memory_format=torch.channels_last),
    ],
    ids=["one size", "many sizes", "many sizes, channels last"],
)
def test_dropped_memory_of_dali_is_not_reused_while_the_gpu_lags(photos, options, engines, monkeypatch):
    """These tensors are DALI's memory, which its next batches reuse. The sums after 20 ms of other work must equal
    those of an epoch without delay."""
    if engines is not None:
        monkeypatch.setenv("DALI_COMPAT_JPEG_ENGINE", engines)
    dataset = DALIImageFolder(photos, options["transform"])
    more = {name: value for name, value in options.items() if name != "transform"}
    drawn = RandomSampler(dataset, replacement=True, num_samples=60 * 32)
    loader = ours(dataset, 32, sampler=drawn, device="cuda", **more)

    def sums(cycles: int) -> torch.Tensor:
        torch.manual_seed(0)
        found = []
        for batch in loader:
            images = batch[0] if "collate_fn" not in options else batch
            del batch
            torch.cuda._sleep(cycles)
            found += [image.sum(dtype=torch.float64) for image in images]
            del images
        return torch.stack(found).cpu()

    sums(1)  # reads all headers
    wanted = sums(1)
    assert torch.equal(sums(MILLISECONDS_20), wanted)
    loader.close()


@pytest.mark.gpu
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("transform", LARGE, ids=str)
def test_next_does_not_wait_while_the_gpu_lags(tmp_path, transform, exact, monkeypatch):
    """Batch operations are queued after one second of other work on the GPU.

    next() must not wait, and the images must equal those of an epoch without delay. Only one batch and the prepared one
    are tested, because CUDA queues about 1,000 launches and RandAugment needs 300 for each batch.
    """
    monkeypatch.setenv("DALI_COMPAT_JPEG_ENGINE", "0")
    folder = make_folder(tmp_path / "images", classes=2, per_class=16, special=False)
    dataset = DALIImageFolder(folder, T.Compose([T.RandomResizedCrop(224), transform, T.ToTensor()]))
    drawn = RandomSampler(dataset, replacement=True, num_samples=6 * 128)
    loader = ours(dataset, 128, sampler=drawn, device="cuda", exact=exact)
    list(loader)  # reads all headers and loads the kernels
    torch.cuda._sleep(A_SECOND)  # allocates memory for unfinished batches
    torch.manual_seed(0)
    wanted = [images for images, _ in loader]
    torch.manual_seed(0)
    batches = iter(loader)
    received = [next(batches)[0] for _ in range(2)]
    gc.collect()  # pipelines of other tests; freeing one waits for the GPU
    torch.cuda.synchronize()
    torch.cuda._sleep(A_SECOND)
    done = torch.cuda.Event()
    done.record()
    received.append(next(batches)[0])
    assert not done.query()
    assert all(torch.equal(images, expected) for images, expected in zip(received, wanted[:3], strict=True))
    loader.close()


@pytest.mark.gpu
@pytest.mark.parametrize("engines", ["0", None], ids=["no engine", "engines"])
@pytest.mark.parametrize("exact", [False, True])
def test_images_are_correct_while_matrix_products_occupy_the_gpu(photos, exact, engines, monkeypatch):
    """Matrix products occupy all multiprocessors, so that each kernel of a batch waits for milliseconds.

    A JPEG engine need not wait, since nvJPEG writes at once regardless of pending work on its stream
    (pytorch/vision#9606).
    """
    if engines is not None:
        monkeypatch.setenv("DALI_COMPAT_JPEG_ENGINE", engines)
    transform = T.Compose([T.Resize(256), T.CenterCrop(224), T.PILToTensor()])
    drawn = RandomSampler(range(len(ImageFolder(photos))), replacement=True, num_samples=100 * 64)
    loader = ours(DALIImageFolder(photos, transform), 64, sampler=drawn, device="cuda", exact=exact)
    list(loader)  # reads all headers
    torch.manual_seed(0)
    wanted = [images.clone() for images, _ in loader]
    factor = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    product, busy_stream = torch.empty_like(factor), torch.cuda.Stream()
    busy_stream.wait_stream(torch.cuda.current_stream())
    torch.manual_seed(0)
    received = []
    for images, _ in loader:
        received.append(images.clone())
        with torch.cuda.stream(busy_stream):
            for _ in range(10):
                torch.mm(factor, factor, out=product)
    wrong = [i for i, (mine, others) in enumerate(zip(received, wanted, strict=True)) if not torch.equal(mine, others)]
    loader.close()
    assert not wrong

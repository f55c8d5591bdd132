"""Custom data sets run as in torch's loader, and DALI computes the images if it can."""

import functools
import gc
import io
import multiprocessing
import os
import random
import re
import signal
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import programs
import pytest
import torch
from black_box import difference
from helpers import some
from PIL import Image, ImageFilter
from torch.utils import data
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.datasets import CocoDetection, ImageFolder, VisionDataset
from torchvision.transforms import functional as F

import dali_compat
from contract import own_datasets as own
from contract.both import EXACT, error_of, ours, stock
from dali_compat import DALIImageFolder, DataLoader, ImageReadError
from dali_compat.epoch import traced
from dali_compat.routes.dali import MOST_PIPELINES
from dali_compat.tracing import trial


@pytest.fixture
def folder(image_root) -> ImageFolder:
    return ImageFolder(image_root)


def seeded(dataset, *args, **kwargs):
    """Return a function that iterates over a seeded loader and returns its batches."""

    def batches(make):
        torch.manual_seed(0)
        random.seed(1)
        np.random.seed(2)
        return list(make(dataset, *args, **kwargs))

    return batches


def assert_same(mine, theirs, limit=0.0) -> None:
    """Compare nested containers, including types; floating-point images may differ by ``limit`` on average."""
    assert type(mine) is type(theirs), (type(mine), type(theirs))
    if isinstance(theirs, torch.Tensor):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype and mine.device == theirs.device
        if limit and theirs.ndim >= 3:
            assert (mine - theirs).abs().double().mean() <= limit
        else:
            assert torch.equal(mine, theirs)
    elif isinstance(theirs, dict):
        assert list(mine) == list(theirs)
        for key in theirs:
            assert_same(mine[key], theirs[key], limit)
    elif isinstance(theirs, (list, tuple)):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other, limit)
    else:
        assert mine == theirs


def real(loader) -> int:
    """Return the number of batches without any deferred image."""
    return loader._route.realized


# Data sets that are compared with two workers, too: several kinds of samples, and of state
IN_WORKERS = own.Kaggle, own.InMemory, own.AsDict, own.ByReader, own.Triplets, own.LargeMasks, own.Cached, own.Batched


@pytest.mark.parametrize("kind", own.SERVED, ids=lambda kind: kind.__name__)
def test_batches_of_a_traced_data_set_equal_torchs(folder, kind):
    """The batches are bit-identical with exact=True; otherwise within the differences between the kernels."""
    dataset = kind(folder)
    theirs = seeded(kind(folder), 5)(stock)
    loaders = []

    def mine(*args, **kwargs):
        loaders.append(ours(*args, device="cpu", **kwargs))
        return loaders[-1]

    assert_same(seeded(dataset, 5, exact=True)(mine), theirs)
    if kind in some(own.SERVED[1:]):
        assert_same(seeded(kind(folder), 5)(mine), theirs, limit=0.02)
    if kind in IN_WORKERS:
        assert_same(seeded(kind(folder), 5, exact=True, num_workers=2)(mine), theirs)
    assert loaders[0].explain().startswith("DALI route")
    assert f"{kind.__name__} runs in" in loaders[0].explain()


@pytest.mark.parametrize("kind", own.REFUSED, ids=lambda kind: kind.__name__)
def test_data_set_that_reads_pixels_falls_back_with_the_reason(folder, kind):
    with pytest.warns(match=own.REFUSED[kind]):
        loader = DataLoader(kind(folder), 5, device="cpu")
    assert loader.explain().startswith("torchvision route") and own.REFUSED[kind] in loader.explain()
    assert_same(list(loader), list(stock(kind(folder), 5)))


class CocoAnnotations:
    """The part of pycocotools.COCO that CocoDetection uses."""

    def __init__(self, paths, labels):
        self.paths, self.labels = paths, labels

    def loadImgs(self, i):
        return [{"file_name": self.paths[i]}]

    def getAnnIds(self, i):
        return [i]

    def loadAnns(self, ids):
        return [{"category_id": self.labels[i], "bbox": [0.0, 1.0, 2.0 + i, 3.0]} for i in ids]


@pytest.mark.parametrize("workers", [0, 2])
def test_coco_detection_images_are_deferred(folder, workers):
    paths, labels = zip(*folder.samples, strict=True)
    dataset = CocoDetection.__new__(CocoDetection)
    VisionDataset.__init__(dataset, folder.root, transform=own.AFTER)
    dataset.coco, dataset.ids = CocoAnnotations(paths, labels), list(range(len(paths)))
    options = dict(batch_size=None, num_workers=workers)
    mine = ours(dataset, device="cpu", exact=True, **options)
    assert mine.explain().startswith("DALI route") and "CocoDetection runs in" in mine.explain()
    assert_same(list(mine), list(stock(dataset, **options)))


def test_samplers_and_data_set_wrappers_give_torchs_order(folder):
    """Samplers, Subset, ConcatDataset and random_split are torch's."""
    generator = torch.Generator().manual_seed(3)
    first, second = data.random_split(own.Plain(folder), [10, 14], generator)
    whole = data.ConcatDataset([first, data.Subset(own.Transformed(folder), [4, 2, 0]), second])
    for options in (
        dict(shuffle=True),
        dict(shuffle=True, num_workers=2, drop_last=True),
        dict(sampler=range(20, 3, -2)),
    ):
        mine = seeded(whole, 4, **options)(lambda *args, **kw: ours(*args, exact=True, device="cpu", **kw))
        assert_same(mine, seeded(whole, 4, **options)(stock))
    (one, *_) = ours(own.AsDict(folder), None, exact=True, device="cpu")
    assert_same(one, next(iter(stock(own.AsDict(folder), None))))


def test_collate_fn_gets_the_samples_of_the_data_set(folder):

    def collate(samples):
        return {"pixel_values": torch.stack([one["image"] for one in samples]), "n": [one["label"] for one in samples]}

    options = dict(collate_fn=collate, shuffle=True, generator=torch.Generator().manual_seed(1))
    mine = list(ours(own.AsDict(folder), 7, exact=True, device="cpu", **options))
    options["generator"].manual_seed(1)
    assert_same(mine, list(stock(own.AsDict(folder), 7, **options)))
    mine = [one for batch in ours(own.Named(folder), 7, exact=True, device="cpu", collate_fn=list) for one in batch]
    assert_same(mine, [own.Named(folder)[i] for i in range(24)])


def test_getitem_runs_once_per_sample_and_never_before_the_epoch(folder):

    class Counted(own.Plain):
        called = 0

        def __getitem__(self, i):
            self.called += 1
            return super().__getitem__(i)

    dataset = Counted(folder)
    loader = ours(dataset, 5, device="cpu")
    loader.explain()
    assert dataset.called == 0
    list(loader)
    list(loader)
    assert dataset.called == 48
    for number, _ in enumerate(loader, 1):
        assert dataset.called == 48 + min(5 * number, 24)


def test_image_kept_by_the_data_set_has_pillows_attributes_and_pixels(folder):
    class KeepsImage(own.Plain):
        kept = ()

        def __getitem__(self, i):
            image = Image.open(self.paths[i])
            if i == 9:
                self.kept = image, image.convert("RGB")
            return self.transform(image.convert("RGB")), self.labels[i]

    dataset = KeepsImage(folder)
    loader = ours(dataset, 5, exact=True, device="cpu")
    assert_same(list(loader), list(stock(own.Plain(folder), 5)))
    assert real(loader) == 0
    with Image.open(dataset.paths[9]) as image:
        assert dataset.kept[0].format == image.format and np.array_equal(dataset.kept[1], image.convert("RGB"))


def test_image_opened_after_an_epoch_is_not_deferred_in_any_thread(folder):
    list(ours(own.Plain(folder), 5, device="cpu"))
    for opened in (Image.open(folder.samples[0][0]), _call_in_thread(Image.open, folder.samples[0][0])):
        opened.load()
        assert type(opened.im) is type(Image.new("RGB", (1, 1)).im)
        assert type(F.to_tensor(opened)) is torch.Tensor


def _call_in_thread(function, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


class Unchanged:
    def __call__(self, x):
        return x


class MirroredIfPlain:
    """Mirrors ordinary tensors, but not deferred ones."""

    def __call__(self, x):
        return x.flip(-1) if "torch.Tensor" in str(x.__class__) else x


class WithLast(own.Plain):
    """A data set with a transform after the others."""

    last = Unchanged()

    def __getitem__(self, i):
        image, label = super().__getitem__(i)
        return self.last(image), label


@pytest.fixture
def trials(monkeypatch) -> list:
    """The loaders for which a trial was run."""
    found, run = [], trial._try
    monkeypatch.setattr(trial, "_try", lambda loader: found.append(loader) or run(loader))
    return found


@pytest.mark.parametrize("workers", [0, 1])
def test_transform_when_added_after_an_epoch_is_tried(folder, trials, workers):
    dataset = own.Plain(folder, T.Compose([T.CenterCrop(16), T.ToTensor()]))
    loader = DataLoader(dataset, 5, device="cpu", exact=True, fallback="silent", num_workers=workers)
    assert_same(list(loader), list(stock(dataset, 5)))
    assert "DALI route" in loader.explain()
    dataset.transform.transforms.append(MirroredIfPlain())
    assert_same(list(loader), list(stock(dataset, 5)))
    assert "returns different samples if its images are deferred" in loader.explain()
    assert len(trials) == 2


def test_transform_when_created_at_the_address_of_another_is_tried(folder, trials):
    dataset = WithLast(folder, EXACT)
    dataset.last = Unchanged()
    loader = DataLoader(dataset, 5, device="cpu", exact=True, fallback="silent")
    assert_same(list(loader), list(stock(dataset, 5)))
    address, made = id(dataset.last), []
    del dataset.last
    while len(made) < 20000 and (not made or id(made[-1]) != address):
        made.append(MirroredIfPlain())
    dataset.last = made[-1]
    assert_same(list(loader), list(stock(dataset, 5)))
    assert len(trials) == 2


@pytest.mark.parametrize("kind", IN_WORKERS)
def test_trial_when_the_data_set_is_unchanged_is_not_repeated(folder, trials, kind):
    """Neither for later epochs nor for other loaders over the data set."""
    dataset = kind(folder)
    for loader in (DataLoader(dataset, 5, device="cpu"), DataLoader(dataset, 3, shuffle=True, device="cpu")):
        list(loader)
        list(loader)
    assert len(trials) == 1


def test_trial_does_not_open_a_reader_that_opens_on_first_use(folder):
    dataset = own.ByReader(folder)
    loader = ours(dataset, 5, device="cpu")
    assert loader.explain().startswith("DALI route") and dataset.reader.files is None


def test_trial_does_not_change_the_data_set_or_random_states(folder):
    opened, array, tensor, closed, parts = {}, np.zeros(3), torch.zeros(3), 0, functools.partial(dict, count=[0])

    class Slots:
        __slots__ = ("count",)

    class Counts(own.Plain):
        count, slots, files = 0, Slots(), {}

        def __getitem__(self, i):
            nonlocal closed
            closed += 1
            Counts.count += 1
            array[0] += 1
            tensor.add_(1)
            parts.keywords["count"][0] += 1
            self.slots.count = getattr(self.slots, "count", 0) + 1
            random.random(), np.random.rand(), torch.rand(1)
            file = opened.setdefault(0, None) or open(self.paths[0], "rb")
            opened[0] = file
            next(self.endless)
            counts = [closed, Counts.count, int(array[0]), int(tensor[0]), parts.keywords["count"][0], self.slots.count]
            return self.transform(own.read_rgb(self.paths[i])), counts

    dataset = Counts(folder)
    dataset.endless = iter(range(24))
    before = random.getstate(), torch.get_rng_state()
    loader = ours(dataset, None, device="cpu")
    assert loader.explain().startswith("DALI route") and not opened
    assert before[0] == random.getstate() and torch.equal(before[1], torch.get_rng_state())
    assert [counts for _, counts in loader] == [[i] * 6 for i in range(1, 25)]
    opened[0].close()


def test_trial_does_not_move_the_position_of_an_open_file(folder, tmp_path):
    archive = tmp_path / "images"
    archive.write_bytes(b"".join(open(path, "rb").read() for path, _ in folder.samples))
    sizes = [os.path.getsize(path) for path, _ in folder.samples]

    class OneByOne(own.Plain):
        def __getitem__(self, i):
            return self.transform(Image.open(io.BytesIO(self.file.read(sizes[i]))).convert("RGB")), self.labels[i]

    dataset = OneByOne(folder)
    with open(archive, "rb") as dataset.file:
        assert_same(list(ours(dataset, 5, exact=True, device="cpu")), list(stock(own.Plain(folder), 5)))


def _is_killed(self, i):
    os.kill(os.getpid(), signal.SIGKILL)


def _exits(self, i):
    os._exit(0)


def _waits_for_a_thread(self, i):
    """Deadlock in a forked child, which has no copy of the thread."""
    return self.pool.submit(lambda: own.read_rgb(self.paths[i])).result()


@pytest.mark.parametrize("fail", [_is_killed, _exits, _waits_for_a_thread], ids=lambda f: f.__name__)
def test_data_set_falls_back_when_the_trial_subprocess_fails(folder, fail):

    class FailsInTrial(own.Plain):
        parent, pool = os.getpid(), ThreadPoolExecutor(1)

        def __getitem__(self, i):
            if os.getpid() != self.parent:
                fail(self, i)
            return super().__getitem__(i)

    FailsInTrial.pool.submit(int).result()
    with pytest.warns(match="in the trial subprocess"):
        loader = DataLoader(FailsInTrial(folder), 5, device="cpu")
    assert_same(list(loader), list(stock(own.Plain(folder), 5)))


@pytest.mark.parametrize("first", [0, 1])
def test_data_set_falls_back_with_the_error_when_the_trial_raises(folder, first):
    class RaisesInTrial(own.Plain):
        parent = os.getpid()

        def __getitem__(self, i):
            if os.getpid() != self.parent and i >= first:
                raise ValueError("no such\ntable; yet") if not first else KeyboardInterrupt
            return super().__getitem__(i)

    reason = "raises ValueError: no such table, yet" if not first else "in the trial subprocess"
    with pytest.warns(match=reason):
        loader = DataLoader(RaisesInTrial(folder), 5, device="cpu")
    assert_same(list(loader), list(stock(own.Plain(folder), 5)))


def test_data_set_that_changes_a_multiprocessing_manager_falls_back(folder):
    class Counted(own.Plain):
        def __getitem__(self, i):
            self.seen[i] = 1 + self.seen.get(i, 0)
            return super().__getitem__(i)

    with multiprocessing.Manager() as manager:
        dataset = Counted(folder)
        dataset.seen = manager.dict()
        with pytest.warns(match=r"multiprocessing\.Manager"):
            loader = DataLoader(dataset, 5, device="cpu")
        assert not dataset.seen
        assert_same(list(loader), list(stock(own.Plain(folder), 5)))
        assert len(dataset.seen) == len(dataset)


def test_data_set_that_filters_some_images_is_traced_for_any_random_state(folder):

    def some(self, i):
        image = own.read_rgb(self.paths[i])
        if i % 3 == 0 or random.random() < 0.1:
            image = image.filter(ImageFilter.BLUR)
        return self.transform(image), self.labels[i]

    for seed in range(4):
        random.seed(seed)
        loader = ours(type("Some", (own.Plain,), {"__getitem__": some})(folder), 5, device="cpu")
        assert loader.explain().startswith("DALI route")


VARYING_TRANSFORMS = {
    "object": lambda image, i: T.CenterCrop(8 + i)(image),
    "Compose": lambda image, i: T.Compose([T.RandomRotation((i, i))])(image),
    "padding": lambda image, i: T.Pad(i)(image),
    "function": lambda image, i: F.center_crop(image, [8 + i, 9]),
    "method": lambda image, i: image.resize((8 + i, 9)),
}


@pytest.mark.alike
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", VARYING_TRANSFORMS)
def test_transforms_constructed_for_each_sample_share_few_pipelines(folder, kind, workers):
    transform = T.Compose([T.Resize((8, 8)), T.ToTensor()])

    def get(self, i):
        return transform(VARYING_TRANSFORMS[kind](own.read_rgb(self.paths[i % 24]), 0 if i in (0, 1, 2, 3) else i)), i

    dataset = type("Anew", (own.Plain,), {"__getitem__": get, "__len__": lambda self: 200})(folder)
    loader = ours(dataset, 8, exact=True, device="cpu", num_workers=workers)
    before = len(os.listdir("/proc/self/task"))
    assert_same(list(loader), list(stock(dataset, 8)))
    assert len(os.listdir("/proc/self/task")) < before + 17 * 16

    assert not real(loader) and len(loader._route._pipelines) <= 4


def test_images_of_many_sizes_share_few_pipelines(folder):
    to_tensor, turns = T.ToTensor(), (F.hflip, F.vflip, F.invert)

    def get(self, i):
        images = [turn(own.read_rgb(self.paths[i])) for turn in turns]
        return [to_tensor(image.resize((20 + i // 3, 9))) for image in images]

    dataset = type("Sizes", (own.Plain,), {"__getitem__": get})(folder)
    before = len(os.listdir("/proc/self/task"))
    loader = ours(dataset, 8, exact=True, device="cpu", collate_fn=list)
    for _ in range(2):
        assert_same(list(loader), list(stock(dataset, 8, collate_fn=list)))
    assert len(loader._route._pipelines) < MOST_PIPELINES and not real(loader)
    assert len(os.listdir("/proc/self/task")) < before + 12 * MOST_PIPELINES


def test_resizes_to_varying_sizes_share_a_pipeline(folder):

    class ResizedByIndex(own.Plain):
        def __getitem__(self, i):
            return self.transform(own.read_rgb(self.paths[i]).resize((20 + i, 20))), self.labels[i]

    loader = ours(ResizedByIndex(folder), 5, exact=True, device="cpu")
    assert_same(list(loader), list(stock(ResizedByIndex(folder), 5)))
    assert not real(loader) and len(loader._route._pipelines) <= 2


def test_files_that_the_data_set_writes_are_decoded_by_pillow(folder, tmp_path):
    """The image at such a path may change with every sample."""

    class Fetched(own.Plain):
        def __getitem__(self, i):
            path = tmp_path / "fetched.jpg"
            path.write_bytes(open(self.paths[i], "rb").read())
            return self.transform(own.read_rgb(path)), self.labels[i]

    loader = DataLoader(Fetched(folder), 5, exact=True, device="cpu", fallback="silent")
    assert "opens files that were written just now" in loader.explain()

    class FetchedLater(own.Plain):
        def __getitem__(self, i):
            return Fetched.__getitem__(self, i) if i > 3 else super().__getitem__(i)

    loader = ours(FetchedLater(folder), 5, exact=True, device="cpu")
    assert_same(list(loader), list(stock(own.Plain(folder), 5)))
    assert real(loader) == 4  # the first of five batches has deferred images


class Truncates(own.Plain):
    """A data set that truncates a file after it has opened the image, as another process may do."""

    def __getitem__(self, i):
        sample = super().__getitem__(i)
        if i == 5:
            os.truncate(self.paths[i], 400)
        return sample


class Long(own.Plain):
    def __len__(self):
        return 300_000


def test_file_when_it_changes_while_another_loader_runs_raises_an_error_with_its_path(own_root):
    """The loaders have tables of headers of different sizes."""
    dataset = Truncates(ImageFolder(own_root))
    batches = iter(ours(dataset, 4, device="cpu", num_workers=0))
    next(batches)
    next(iter(ours(Long(ImageFolder(own_root)), 4, device="cpu")))
    with pytest.raises(ImageReadError, match=re.escape(dataset.paths[5])):
        next(batches)


def test_file_that_pillow_cannot_read_raises_torchs_error_or_is_skipped(own_root):
    folder = ImageFolder(own_root)
    time.sleep(0.05)
    bad = folder.samples[2][0]
    whole = open(bad, "rb").read()
    for content in (b"nothing", whole[: len(whole) // 2]):
        open(bad, "wb").write(content)
        time.sleep(0.05)  # recently written files are not decoded by DALI
        assert_same(list(ours(own.Tried(folder), 3, exact=True, device="cpu")), list(stock(own.Tried(folder), 3)))
        errors = []
        for loader in (ours(own.Plain(folder), 3, device="cpu"), stock(own.Plain(folder), 3)):
            error = error_of(list, loader)
            errors.append((type(error), str(error)))
        assert errors[0] == errors[1] and issubclass(errors[0][0], OSError)
        skipped = DataLoader(own.Plain(folder), 3, exact=True, device="cpu", fallback="error", on_error="skip")
        with pytest.warns(match="is skipped"):
            batches = list(skipped)
        assert [len(labels) for _, labels in batches] == [2, 3, 2] and len(skipped.errors) == 1
        replaced = ours(own.Plain(folder), 3, exact=True, device="cpu", on_error="replace")
        with pytest.warns(match="is replaced"):
            assert [len(labels) for _, labels in replaced] == [3, 3, 2]
    open(bad, "wb").write(whole)

    errors = [error_of(list, make(FailsAtFour(folder), 1)) for make in (stock, lambda *args: ours(*args, device="cpu"))]
    assert [(type(error), str(error)) for error in errors] == [(KeyError, "'four'")] * 2


def test_second_epoch_builds_no_pipeline(folder, monkeypatch):
    from dali_compat.engine.dali.pipeline import DecodePipeline

    built, build = [], DecodePipeline._build
    monkeypatch.setattr(DecodePipeline, "_build", lambda self, template: built.append(self) or build(self, template))
    loader = ours(own.ByClass(folder), 4, device="cpu")
    list(loader)
    first = len(built)
    list(loader)
    assert first == 2 and len(built) == first


def test_resumed_epoch_gives_the_remaining_batches(folder):

    def assert_resumes(kind, **options):
        dataset = kind(folder)
        torch.manual_seed(0)
        loader = ours(dataset, 4, shuffle=True, device="cpu", **options)
        whole = iter(loader)
        next(whole), next(whole)
        state = loader.state_dict()
        rest = list(whole)
        resumed = ours(dataset, 4, shuffle=True, device="cpu", **options)
        resumed.load_state_dict(state)
        assert_same(list(resumed), rest)

    assert_resumes(own.AsDict)
    assert_resumes(own.Noisy, num_workers=2)
    assert_resumes(own.Noisy)


def test_unreadable_replacement_candidates_are_listed_in_errors(own_root):
    dataset = DALIImageFolder(own_root, own.TRANSFORM, loader=lambda path: own.read_rgb(path).copy())
    for path, _ in dataset.samples[1:]:
        open(path, "wb").write(b"nothing")
    time.sleep(0.05)
    loader = ours(dataset, 8, device="cpu", on_error="replace")
    with pytest.warns(match="is replaced"):
        list(loader)
    assert "its images are deferred" in loader.explain()
    assert {(one.index, one.path) for one in loader.errors} == set(enumerate(path for path, _ in dataset.samples)) - {
        (0, dataset.samples[0][0])
    }


def test_explain_shows_which_steps_of_a_custom_data_set_run_on_whole_batches(own_root):
    transform = T.Compose([T.RandomResizedCrop(64), T.ColorJitter(0.4), T.ToTensor()])
    dataset = DALIImageFolder(own_root, transform, loader=lambda path: own.read_rgb(path).copy())
    rows = {line.split()[0]: line for line in ours(dataset, 4, device="cpu", exact=True).explain().splitlines()[1:-2]}
    assert "torch, image by image" in rows["resize"] and "torch, on the batch" in rows["color_jitter"]


@pytest.mark.parametrize("workers", [0, 1])
def test_on_error_replace_raises_if_no_sample_can_be_read(own_root, workers):
    folder = ImageFolder(own_root)
    loader = ours(own.Plain(folder), 3, device="cpu", on_error="replace", num_workers=workers)
    list(loader)
    for path, _ in folder.samples:
        open(path, "wb").write(b"nothing")
    with pytest.raises(ImageReadError, match=r"cannot read .*jpg, index \d: Unident"):
        list(loader)


class ChecksWorkerInfo(own.Plain):
    """Raises unless the worker info is the same as in torch's loader."""

    opened = None

    def __getitem__(self, i):
        info = data.get_worker_info()
        assert self.opened == info.id and info.dataset is self and info.num_workers == self.workers
        return super().__getitem__(i) if i % 5 else (own.Arrays.__getitem__(self, i)[0].float(), i)


def _set_opened(number):
    data.get_worker_info().dataset.opened = number


@pytest.mark.parametrize("context, workers", [("fork", 2), ("spawn", 1)])
def test_worker_info_and_worker_init_fn_work_as_in_torchs_loader(folder, context, workers):
    """Some of the images are computed by the data set."""
    dataset = ChecksWorkerInfo(folder)
    dataset.workers = workers
    dataset.__class__ = ChecksWorkerInfoInWorkersOnly  # its first sample needs no worker
    options = dict(num_workers=workers, worker_init_fn=_set_opened, multiprocessing_context=context)
    loader = ours(dataset, 5, device="cpu", exact=True, **options)
    assert f"in {workers} worker process" in loader.explain()
    mine = list(loader)
    dataset.__class__ = ChecksWorkerInfo
    assert_same(mine, list(stock(dataset, 5, **options | {"multiprocessing_context": "fork"})))
    assert dataset.opened is None and real(loader) == 0


class ChecksWorkerInfoInWorkersOnly(ChecksWorkerInfo):
    def __getitem__(self, i):
        return own.Plain.__getitem__(self, i) if data.get_worker_info() is None else super().__getitem__(i)


def test_worker_error_is_torchs_and_on_error_lists_bad_files(own_root):
    folder = ImageFolder(own_root)
    time.sleep(0.05)  # recently written files are not decoded by DALI
    error = error_of(list, ours(FailsAtFour(folder), 3, num_workers=1, device="cpu"))
    assert type(error) is KeyError and "Caught KeyError in DataLoader worker process 0" in str(error)
    bad = folder.samples[2][0]
    open(bad, "wb").write(b"nothing")
    time.sleep(0.05)
    mine = list(ours(own.Tried(folder), 3, exact=True, device="cpu", num_workers=1))
    assert_same(mine, list(stock(own.Tried(folder), 3)))
    for policy in ("skip", "replace"):
        loader = ours(own.Plain(folder), 3, device="cpu", on_error=policy, num_workers=1)
        with pytest.warns(match="of 8 samples were"):
            assert sum(len(labels) for _, labels in loader) == (7 if policy == "skip" else 8)
        assert [one.path for one in loader.errors] == [bad]


class DrawsInWorkers(own.Plain):
    """Draws from an attribute, which is copied to each worker; worker 1 is slow."""

    def __init__(self, folder):
        super().__init__(folder)
        self.rng = np.random.default_rng(3)

    def __getitem__(self, i):
        info = data.get_worker_info()
        if info is not None and info.id == 1:
            time.sleep(0.02)
        return super().__getitem__(i)[0], self.rng.integers(1 << 30), -1 if info is None else info.id


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_are_assigned_to_the_same_workers_as_in_torchs_loader(folder, persistent):
    """Persistent workers keep their copy of the data set."""

    def epochs(make):
        dataset = DrawsInWorkers(folder)
        loader = make(dataset, 3, num_workers=2, persistent_workers=persistent)
        made = [list(loader)]
        next(iter(loader))  # an epoch that is abandoned
        dataset.rng = np.random.default_rng(4)
        return [*made, list(loader), list(loader)]

    loaders = []

    def mine(*args, **options):
        loaders.append(ours(*args, exact=True, device="cpu", **options))
        return loaders[-1]

    assert_same(epochs(mine), epochs(stock))
    assert "without effect" not in loaders[0].explain()


def test_all_received_batches_are_computed_ahead(folder, monkeypatch):
    """This includes the last batches of an epoch, after the workers have finished."""
    ahead, finish_first = [], traced.finish_first

    def recorded(ready, epoch):
        ahead.append(len(ready))
        finish_first(ready, epoch)

    monkeypatch.setattr(traced, "finish_first", recorded)
    loader = ours(DrawsInWorkers(folder), 2, sampler=range(12), num_workers=2, prefetch_factor=3, device="cpu")
    iterator, end = iter(loader), time.monotonic() + 60
    while iterator._data_queue.qsize() < 6 and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(0.5)  # a worker's thread may still be writing the last batch
    assert len(list(iterator)) == 6 and ahead == [2, 2, 2, 2, 1]


@pytest.mark.parametrize("workers", [0, 2])
def test_iterator_is_freed_after_its_last_batch(folder, workers):
    iterator = iter(ours(own.Plain(folder), 4, num_workers=workers, device="cpu"))
    freed = weakref.ref(iterator)
    gc.collect()
    gc.disable()
    try:
        assert len(list(iterator)) == 6
        del iterator
        assert freed() is None
    finally:
        gc.enable()


FORKING_PROGRAM = """
import gc, os, sys, torch
from contract import own_datasets as own
from dali_compat import DataLoader
from torchvision.datasets import ImageFolder
loader = DataLoader(own.Plain(ImageFolder(sys.argv[1])), 2, num_workers=2, device="cpu", collate_fn=list)
iterator = iter(loader)
for _ in range(3):
    next(iterator)
child = os.fork()
if child == 0:
    try:
        next(iterator)
    except RuntimeError as error:
        print(error, flush=True)
    cycle = [iterator]
    cycle.append(cycle)
    del cycle, iterator
    gc.collect()
    print(len(list(loader)), flush=True)
    os._exit(0)  # multiprocessing would end the workers of the parent
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(list(iterator)))
"""


def test_forked_child_cannot_use_the_parents_iterator_but_can_create_one(image_root):
    done = programs.run(FORKING_PROGRAM, str(image_root), seconds=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "this iterator belongs to the parent process; call iter(loader) in the child",
        "12",
        "0 9",
    ]


class Unpicklable(own.Plain):
    def __getitem__(self, i):
        return *super().__getitem__(i), lambda: i


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_cannot_be_pickled_reach_collate_fn_in_the_worker(folder, workers):
    options = dict(num_workers=workers, collate_fn=lambda samples: [(x, number()) for x, _, number in samples])
    mine = list(ours(Unpicklable(folder), 3, device="cpu", exact=True, **options))
    assert_same(mine, list(stock(Unpicklable(folder), 3, **options)))


class ExitsInWorker(own.Plain):
    def __getitem__(self, i):
        if i == 7 and data.get_worker_info() is not None:
            os._exit(3)
        return super().__getitem__(i)


def test_worker_that_exits_raises_torchs_error(folder):
    """Batches that still arrive are complete."""
    found, errors = [], []
    batches = iter(ours(ExitsInWorker(folder), 4, exact=True, device="cpu", num_workers=2))
    for _ in range(8):
        try:
            found.append(next(batches)[0])
        except StopIteration:
            break
        except RuntimeError as error:
            errors.append(str(error))
    expected = [images for images, _ in stock(own.Plain(folder), 4)]
    assert errors and "DataLoader worker (pid" in errors[0] and "exited unexpectedly" in errors[0]
    places = [[torch.equal(one, other) for other in expected].index(True) for one in found]
    assert places == sorted(places) and 1 not in places


class FailsAtFour(own.Plain):
    def __getitem__(self, i):
        if i == 4:
            raise KeyError("four")
        return super().__getitem__(i)


def test_install_replaces_torchs_loader_only_if_the_data_set_can_be_traced(folder):
    with dali_compat.install(device="cpu", exact=True):
        mine, other = data.DataLoader(own.Plain(folder), 6), data.DataLoader(own.Arrays(folder), 6)
    assert isinstance(mine, DataLoader) and not isinstance(other, DataLoader)
    assert_same(list(mine), list(stock(own.Plain(folder), 6)))


def test_hugging_face_data_set_with_a_transform_gives_torchs_batches(folder):
    """The transform is set as in Hugging Face's example scripts, for encoded bytes and for files."""
    hf = pytest.importorskip("datasets")
    rows = {"label": [label for _, label in folder.samples]}
    for embed in (False, True):
        images = [{"bytes": open(path, "rb").read() if embed else None, "path": path} for path, _ in folder.samples]
        features = hf.Features({"image": hf.Image(), "label": hf.Value("int64")})
        rows_ = hf.Dataset.from_dict({"image": images} | rows, features=features)

        def preprocess(examples):
            examples["pixel_values"] = [own.TRANSFORM(image.convert("RGB")) for image in examples["image"]]
            return examples

        def collate(examples):
            pixels = torch.stack([example["pixel_values"] for example in examples])
            return {"pixel_values": pixels, "labels": torch.tensor([example["label"] for example in examples])}

        dataset = rows_.with_transform(preprocess)
        loader = ours(dataset, 5, device="cpu", exact=True, collate_fn=collate, shuffle=True, generator=_seeded(3))
        theirs = stock(dataset, 5, collate_fn=collate, shuffle=True, generator=_seeded(3))
        assert_same(list(loader), list(theirs))
        assert real(loader) == 0
        resumed = ours(data.Subset(dataset, range(3, 9)), 5, device="cpu", exact=True, collate_fn=collate)
        assert_same(list(resumed), list(stock(data.Subset(dataset, range(3, 9)), 5, collate_fn=collate)))


def _seeded(seed):
    return torch.Generator().manual_seed(seed)


PERSISTENT_WORKERS_PROGRAM = """
import sys
from contract import own_datasets as own
from dali_compat import DataLoader
from torchvision.datasets import ImageFolder

loader = DataLoader(own.Plain(ImageFolder(sys.argv[1])), 6, num_workers=2, persistent_workers=True, device="cpu")
print(len(list(loader)), "DALI" in loader.explain())
"""


def test_program_exits_without_output_if_persistent_workers_are_running(image_root, folder):
    result = programs.run(PERSISTENT_WORKERS_PROGRAM, str(image_root))
    assert (result.returncode, result.stdout.split(), result.stderr) == (0, [str(-(-len(folder) // 6)), "True"], "")


KILLED_PROGRAM = """
import os, signal, sys, time
from contract import own_datasets as own
from dali_compat import DataLoader
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

dataset = own.Plain(ImageFolder(sys.argv[1]))
dataset = Subset(dataset, [i % len(dataset) for i in range(3000)])
batches = iter(DataLoader(dataset, 500, num_workers=2, device="cpu", fallback="error"))
next(batches)
time.sleep(3)  # until batches that no process reads have filled the workers' pipe
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_exit_after_the_loading_process_was_killed(image_root):
    result = programs.run(KILLED_PROGRAM, str(image_root), seconds=90)  # until the workers have closed stdout, too
    assert result.returncode == -signal.SIGKILL


class SmallTensors(own.Plain):
    """Samples with all kinds of small tensors."""

    def __getitem__(self, i):
        image, _ = super().__getitem__(i)
        x, y = torch.arange(6.0).view(2, 3) + i, torch.tensor([i])
        boxes = tv_tensors.BoundingBoxes([[1, 2, 3 + i, 4]], format="XYXY", canvas_size=(20, 30))
        named = torch.ones(2)
        named.note = "a"  # not kept by torch's queue
        return {
            "image": image,
            "boxes": boxes,
            "mask": tv_tensors.Mask(torch.zeros(1, 4, 4, dtype=torch.uint8)),
            "views": (x, x[:1], x.t()),
            "same": [y, y],
            "others": [torch.zeros(0, 4), y > 1, torch.tensor(1j), torch.ones(2).bfloat16(), torch.zeros(200, 200)],
            "sparse": torch.eye(3).to_sparse(),
            "named": named,
        }


def test_small_tensors_from_workers_equal_torchs(folder):
    options = {"num_workers": 2, "collate_fn": list}
    mine = list(ours(SmallTensors(folder), 4, device="cpu", exact=True, **options))
    theirs = list(stock(SmallTensors(folder), 4, **options))
    assert difference(theirs, mine) == ""
    for batches in (mine, theirs):
        sample = batches[0][1]
        assert len({one.data_ptr() for one in sample["views"]}) == 1 and sample["same"][0] is sample["same"][1]

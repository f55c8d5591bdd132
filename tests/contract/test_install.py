"""install() and uninstall(): torch.utils.data.DataLoader is ours where it is over images, and torch's own elsewhere."""

import copy
import logging
import multiprocessing.spawn
import pickle
import re
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.utils.data.dataloader
from PIL import Image
from torch.utils import data
from torch.utils.data import DataLoader as ImportedBefore
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.datasets.folder import default_loader, pil_loader
from torchvision.io import read_image

import dali_compat
from contract.both import EXACT, SMALL, assert_same_epoch, outlines
from dali_compat import DALIArrayDataset, DALIImageFolder, FallbackWarning, install, uninstall
from dali_compat.patch.loader import InstalledLoader
from dali_compat.runtime import Patched, dataset_base, messages

TORCHS = data.DataLoader.__init__


class Own(data.DataLoader):
    """Made before, with arguments of its own."""

    def __init__(self, dataset, *, twice=False, **arguments):
        self.twice = twice
        super().__init__(dataset, **arguments)

    def __iter__(self):
        for _ in range(1 + self.twice):
            yield from super().__iter__()


class Numbers(data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor(index), {"length": index}


@pytest.fixture(autouse=True)
def torchs_own_afterwards(monkeypatch):
    monkeypatch.setattr(messages, "_announced", set())
    yield
    uninstall()
    assert data.DataLoader.__init__ is TORCHS


@pytest.fixture
def images(image_root):
    return ImageFolder(image_root, EXACT)


# ---- what becomes of loaders


def test_a_loader_over_images_is_ours(images):
    theirs = ImportedBefore(images, 5)
    install(device="cpu")
    for loader_class in (ImportedBefore, data.DataLoader, torch.utils.data.dataloader.DataLoader):
        loader = loader_class(images, 5)
        assert type(loader) is InstalledLoader and loader.explain().startswith("DALI route on cpu")
        assert_same_epoch(loader, theirs)


@pytest.mark.parametrize("wrap", [lambda d: data.Subset(d, range(9)), lambda d: data.ConcatDataset([d, d])])
def test_parts_of_images_are_images(images, wrap):
    install(device="cpu")
    assert type(data.DataLoader(wrap(images), 5)) is InstalledLoader


def test_images_in_memory_are_images():
    install(device="cpu")
    pixels = torch.randint(0, 256, (8, 6, 6, 3), dtype=torch.uint8)
    loader = data.DataLoader(DALIArrayDataset(pixels, range(8), EXACT), 4)
    assert type(loader) is InstalledLoader
    made = CIFAR10.__new__(CIFAR10)
    made.data, made.targets, made.transform, made.target_transform = pixels.numpy(), list(range(8)), EXACT, None
    assert type(data.DataLoader(made, 4)) is InstalledLoader


@pytest.mark.parametrize("dataset", [Numbers(), data.TensorDataset(torch.arange(12)), list(range(12))])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_over_something_else_is_torchs(dataset, workers):
    arguments = dict(batch_size=5, shuffle=True, num_workers=workers)
    theirs = outlines(data.DataLoader(dataset, **arguments))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        install()
        before = {*threading.enumerate()}
        loader = data.DataLoader(dataset, **arguments)
        assert type(loader) is ImportedBefore and {*threading.enumerate()} <= before
        assert vars(loader).keys() == vars(ImportedBefore(dataset, 5)).keys() - {"_stats"}
        assert outlines(loader) == theirs


def test_an_iterable_data_set_is_torchs():
    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(range(7))

    install()
    loader = data.DataLoader(Stream(), 3)
    assert type(loader) is ImportedBefore and [len(batch) for batch in loader] == [3, 3, 1]


def test_errors_of_arguments_are_torchs(images):
    install(device="cpu")
    for dataset in (images, Numbers()):
        with pytest.raises(ValueError, match="mutually exclusive"):
            data.DataLoader(dataset, shuffle=True, sampler=[1, 2])
    with pytest.raises(TypeError):
        data.DataLoader()
    with pytest.raises(TypeError):
        data.DataLoader(Numbers(), exact=True)


def test_a_loader_made_before_stays_torchs(images):
    loader = data.DataLoader(images, 5)
    install(device="cpu")
    assert type(loader) is ImportedBefore
    again = pickle.loads(pickle.dumps(loader))
    assert type(again) is ImportedBefore
    assert_same_epoch(loader, again)
    assert isinstance(loader, data.DataLoader) and issubclass(Own, data.DataLoader)


# ---- subclasses


def test_a_subclass_is_ours_and_keeps_what_it_does(images):
    theirs = list(Own(images, batch_size=5, twice=True))
    install(device="cpu", exact=True)
    loader = Own(images, batch_size=5, twice=True)
    assert isinstance(loader, Own) and isinstance(loader, dali_compat.DataLoader) and loader.twice and loader.exact
    assert loader.explain().startswith("DALI route")
    assert_same_epoch(loader, theirs)
    assert type(loader).__name__ == "Own" and type(Own(Numbers())) is Own


def test_a_subclass_made_meanwhile_works_afterwards(images):
    with install(device="cpu"):

        class Later(data.DataLoader):
            pass

        loader = Later(images, batch_size=5)
        assert isinstance(loader, dali_compat.DataLoader)
    assert type(Later(images, batch_size=5)) is Later
    assert_same_epoch(loader, Later(images, batch_size=5))


def test_a_subclass_is_copied_and_pickled(images):
    install(device="cpu")
    loader = Own(images, batch_size=5, twice=True)
    for again in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert type(again) is type(loader) and again.twice
        assert_same_epoch(again, loader)
    assert type(pickle.loads(pickle.dumps(data.DataLoader(images)))) is InstalledLoader


def test_a_subclass_made_again_by_its_class_has_the_options(images):
    """As Lightning makes loaders again, with the arguments that the class knows."""
    install(device="cpu", exact=True)
    loader = Own(images, batch_size=5)
    again = type(loader)(images, batch_size=3)
    assert again.exact and again.batch_size == 3 and isinstance(again, dali_compat.DataLoader)


# ---- options, and the end


def test_a_loader_has_the_options_and_may_have_others(images):
    install(exact=True, device="cpu", cache=0.25, fallback="silent", on_error="skip")
    loader = data.DataLoader(images, 5)
    assert (loader.exact, loader.device, loader.cache, loader.fallback) == (True, "cpu", 0.25, "silent")
    assert loader.on_error == "skip"
    assert data.DataLoader(images, 5, exact=False).exact is False
    assert dali_compat.DataLoader(images, 5).exact is False  # of whoever names ours


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match="fallback must be"):
        install(fallback="never")
    with pytest.raises(TypeError, match="unexpected option 'speed'"):
        install(speed=2)
    assert Patched.now is None


def test_a_fallback_warns_at_the_users_line(images):
    install(device="cpu")
    images.loader = lambda path: EXACT
    with pytest.warns(FallbackWarning, match="custom loader") as told:
        data.DataLoader(images, 5)
    assert told[0].filename == __file__
    with install(device="cpu", fallback="error"), pytest.raises(RuntimeError, match="custom loader"):
        data.DataLoader(images, 5)


class Mine(data.Dataset):
    """A data set of the user's, whose code looks at the images."""

    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return EXACT(Image.open(self.files[index]).convert("RGB")) // 2, index


class AsArray(Mine):
    def __getitem__(self, index):
        return torch.from_numpy(np.array(Image.open(self.files[index]).convert("RGB"))[:16, :16]), index


class ByTorchvision(data.Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return read_image(self.files[index])[:1, :16, :16], index


class AStream(data.IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        for file in self.files:
            yield torch.from_numpy(np.array(Image.open(file).convert("RGB"))[:16, :16])


LEFT = {  # to torch's loader, by whatever says why
    Mine: r"uses the tensor's floor_divide \(.*test_install\.py:\d+\); do this on the batch",
    AsArray: r"uses the image's pixels \(.*test_install\.py:\d+\); do this by torchvision's transforms",
    ByTorchvision: "ByTorchvision uses the tensor's getitem",
    AStream: "AStream uses the image's pixels",
    lambda files: data.Subset(Mine(files), [0, 1]): "Mine uses the tensor's floor_divide",
    lambda files: Through(AsArray(files)): "Through uses the image's pixels",
}


@pytest.mark.parametrize("make", LEFT)
def test_no_loader_over_images_stays_torchs_in_silence(images, make, capsys):
    """A warning at the user's line, an error and, with verbose, a line tell the reason."""
    dataset = make([path for path, _ in images.samples])
    with install(device="cpu"), pytest.warns(FallbackWarning, match=LEFT[make]) as told:
        assert type(data.DataLoader(dataset, 2)) is ImportedBefore
    assert len(told) == 1 and told[0].filename == __file__
    with install(device="cpu", fallback="error"), pytest.raises(RuntimeError, match=LEFT[make]):
        data.DataLoader(dataset, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with install(device="cpu", verbose=True):
            data.DataLoader(dataset, 2)
    assert re.search(
        rf"test_install.py:\d+ runs on torch's own loader, because .*{LEFT[make]}", capsys.readouterr().err
    )


def test_a_line_for_each_loader(images, capsys):
    """Once, when it is made, and where it becomes another."""
    with install(device="cpu", verbose=True):
        loader = data.DataLoader(images, 5)
        line = r"\S*test_install.py:\d+ runs on "
        assert re.fullmatch(line + r"DALI \(cpu\)\n", capsys.readouterr().err)
        list(loader)
        data.DataLoader(Numbers())
        assert re.fullmatch(
            line + "torch's own loader, because no images are seen in Numbers\n", capsys.readouterr().err
        )
        images.loader = lambda path: EXACT
        loader = data.DataLoader(images, 5, fallback="silent")
        assert re.fullmatch(line + "torchvision, because .* has a custom loader.*\n", capsys.readouterr().err)
        images.loader = default_loader
        list(loader)
        assert re.fullmatch(line + r"DALI \(cpu\)\n", capsys.readouterr().err)
    data.DataLoader(images, 5)
    assert capsys.readouterr().err == ""


def test_it_ends_with_the_block_and_goes_back_to_what_was_before(images):
    with install(device="cpu"):
        with install(device="cpu", exact=True):
            assert data.DataLoader(images).exact
        assert not data.DataLoader(images).exact
        with pytest.raises(KeyError), install(exact=True):
            raise KeyError
        assert type(data.DataLoader(images)) is InstalledLoader
    assert type(data.DataLoader(images)) is ImportedBefore


def test_uninstall_puts_everything_back(images):
    finders, prepares = list(sys.meta_path), multiprocessing.spawn.get_preparation_data
    install()
    install(exact=True)
    assert data.DataLoader.__init__ is not TORCHS
    uninstall()
    uninstall()
    assert data.DataLoader.__init__ is TORCHS and sys.meta_path == finders
    assert multiprocessing.spawn.get_preparation_data is prepares
    assert type(data.DataLoader(images)) is ImportedBefore


def test_somebody_else_who_has_wrapped_the_constructor_keeps_it(images, monkeypatch):
    install(device="cpu")
    ours = data.DataLoader.__init__
    monkeypatch.setattr(data.DataLoader, "__init__", lambda self, *args, **kwargs: ours(self, *args, **kwargs))
    uninstall()
    assert type(data.DataLoader(images)) is ImportedBefore
    monkeypatch.undo()
    install(device="cpu")
    assert type(data.DataLoader(images)) is InstalledLoader


def test_it_says_in_the_log_what_it_changes(caplog):
    with caplog.at_level(logging.INFO, "dali_compat"):
        install()
    assert "torch.utils.data.DataLoader uses DALI" in caplog.text


def by_hand(image):
    return image.copy() if hasattr(image, "copy") else image.clone()


# ---- torch's loader over data sets of ours


@pytest.fixture
def nothing_said():
    dataset_base._said[0] = 0
    yield
    dataset_base._said[0] = 0


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: data.ConcatDataset([data.Subset(d, range(9)), d])])
def test_torchs_loader_over_our_folder_is_told_once(image_root, wrap, nothing_said):
    dataset = DALIImageFolder(image_root, SMALL)
    assert dataset[0][1] == 0  # by hand
    with pytest.warns(FallbackWarning, match="torch's own loader reads DALIImageFolder") as told:
        list(data.DataLoader(wrap(dataset), 5))
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(data.DataLoader(wrap(DALIImageFolder(image_root, SMALL)), 5))


def test_a_worker_process_tells_and_others_know(image_root, nothing_said):
    """Forked ones, and those of the next epoch."""
    loader = data.DataLoader(DALIImageFolder(image_root, SMALL), 5, num_workers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FallbackWarning, match="torch's own loader reads DALIImageFolder"):
            list(loader)
        assert len(list(loader)) == 5


class Warned(data.Dataset):
    """Its targets count the warnings of the process that reads it."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            image, _ = self.inner[index]
        return by_hand(image), len(caught)


@pytest.mark.alike
@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_of_one_within_another_our_loader_tells_alone(image_root, context, nothing_said):
    """Workers that are no forks do not say that torch's loader reads it, and to take ours instead."""
    dataset = Warned(DALIImageFolder(image_root, SMALL))
    given = {"num_workers": context is not None, "multiprocessing_context": context}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = dali_compat.DataLoader(dataset, 12, device="cpu", **given)
        epochs = 1 if context == "spawn" else 2  # it takes seconds to start a worker
        labels = torch.cat([labels for _ in range(epochs) for _, labels in loader])
    assert len(labels) == epochs * len(dataset) and labels.sum() == 0
    assert not [one for one in caught if issubclass(one.category, FallbackWarning)]
    if context != "spawn":  # where a worker of torch's own loader says so
        assert torch.cat([labels for _, labels in data.DataLoader(dataset, 12, **given)]).sum() == 0


def test_who_indexes_is_told_nothing(image_root, nothing_said):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert DALIImageFolder(image_root, SMALL)[0][1] == 0


def test_what_has_been_told_is_not_told_again(image_root, nothing_said):
    """A loader of ours that falls back has said why."""
    dataset = DALIImageFolder(image_root, SMALL, loader=lambda path: pil_loader(path).quantize(8))
    with pytest.warns(FallbackWarning) as told:
        list(dali_compat.DataLoader(dataset, 5))
    assert len(told) == 1 and "custom loader" in str(told[0].message)


class Through(data.Dataset):
    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, *rest = self.inner[index]
        return by_hand(image), *rest


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_of_ours_has_told_of_what_a_data_set_holds(image_root, nothing_said, on_error, workers):
    loader = dali_compat.DataLoader(
        Through(DALIImageFolder(image_root, SMALL)), 5, num_workers=workers, on_error=on_error, fallback="silent"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sum(len(labels) for _, labels in loader) == len(loader.dataset)


@pytest.mark.parametrize("wrap", [Through, lambda d: data.Subset(Through(d), range(9))])
def test_torchs_loader_that_reads_through_another_data_set_is_told_what_to_give(image_root, nothing_said, wrap):
    with pytest.warns(FallbackWarning, match="reads DALIImageFolder through Through, .* the DALIImageFolder itself"):
        list(data.DataLoader(wrap(DALIImageFolder(image_root, SMALL)), 5))

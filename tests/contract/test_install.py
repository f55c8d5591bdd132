"""install() and uninstall(): which loaders of torch.utils.data.DataLoader become dali_compat's."""

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


class Subclass(data.DataLoader):
    """A subclass defined before install(), with an additional argument."""

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
def uninstall_afterwards(monkeypatch):
    monkeypatch.setattr(messages, "_announced", set())
    yield
    uninstall()
    assert data.DataLoader.__init__ is TORCHS


@pytest.fixture
def images(image_root):
    return ImageFolder(image_root, EXACT)


# ---- classes of loaders


def test_a_loader_of_images_is_ours_after_install(images):
    theirs = ImportedBefore(images, 5)
    install(device="cpu")
    for loader_class in (ImportedBefore, data.DataLoader, torch.utils.data.dataloader.DataLoader):
        loader = loader_class(images, 5)
        assert type(loader) is InstalledLoader and loader.explain().startswith("DALI route on cpu")
        assert_same_epoch(loader, theirs)


@pytest.mark.parametrize("wrap", [lambda d: data.Subset(d, range(9)), lambda d: data.ConcatDataset([d, d])])
def test_a_loader_of_parts_of_an_image_folder_is_ours(images, wrap):
    install(device="cpu")
    assert type(data.DataLoader(wrap(images), 5)) is InstalledLoader


def test_a_loader_of_images_in_memory_is_ours():
    install(device="cpu")
    pixels = torch.randint(0, 256, (8, 6, 6, 3), dtype=torch.uint8)
    loader = data.DataLoader(DALIArrayDataset(pixels, range(8), EXACT), 4)
    assert type(loader) is InstalledLoader
    made = CIFAR10.__new__(CIFAR10)
    made.data, made.targets, made.transform, made.target_transform = pixels.numpy(), list(range(8)), EXACT, None
    assert type(data.DataLoader(made, 4)) is InstalledLoader


@pytest.mark.parametrize("dataset", [Numbers(), data.TensorDataset(torch.arange(12)), list(range(12))])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_without_images_is_torchs(dataset, workers):
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


def test_a_loader_of_an_iterable_data_set_is_torchs():
    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(range(7))

    install()
    loader = data.DataLoader(Stream(), 3)
    assert type(loader) is ImportedBefore and [len(batch) for batch in loader] == [3, 3, 1]


def test_wrong_arguments_raise_torchs_errors_after_install(images):
    install(device="cpu")
    for dataset in (images, Numbers()):
        with pytest.raises(ValueError, match="mutually exclusive"):
            data.DataLoader(dataset, shuffle=True, sampler=[1, 2])
    with pytest.raises(TypeError):
        data.DataLoader()
    with pytest.raises(TypeError):
        data.DataLoader(Numbers(), exact=True)


def test_a_loader_made_before_install_stays_torchs(images):
    loader = data.DataLoader(images, 5)
    install(device="cpu")
    assert type(loader) is ImportedBefore
    again = pickle.loads(pickle.dumps(loader))
    assert type(again) is ImportedBefore
    assert_same_epoch(loader, again)
    assert isinstance(loader, data.DataLoader) and issubclass(Subclass, data.DataLoader)


# ---- subclasses


def test_a_subclass_becomes_ours_and_keeps_its_behaviour(images):
    theirs = list(Subclass(images, batch_size=5, twice=True))
    install(device="cpu", exact=True)
    loader = Subclass(images, batch_size=5, twice=True)
    assert isinstance(loader, Subclass) and isinstance(loader, dali_compat.DataLoader) and loader.twice and loader.exact
    assert loader.explain().startswith("DALI route")
    assert_same_epoch(loader, theirs)
    assert type(loader).__name__ == "Subclass" and type(Subclass(Numbers())) is Subclass


def test_a_subclass_defined_during_install_works_after_it(images):
    with install(device="cpu"):

        class DefinedMeanwhile(data.DataLoader):
            pass

        loader = DefinedMeanwhile(images, batch_size=5)
        assert isinstance(loader, dali_compat.DataLoader)
    assert type(DefinedMeanwhile(images, batch_size=5)) is DefinedMeanwhile
    assert_same_epoch(loader, DefinedMeanwhile(images, batch_size=5))


def test_a_subclass_can_be_copied_and_pickled(images):
    install(device="cpu")
    loader = Subclass(images, batch_size=5, twice=True)
    for again in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert type(again) is type(loader) and again.twice
        assert_same_epoch(again, loader)
    assert type(pickle.loads(pickle.dumps(data.DataLoader(images)))) is InstalledLoader


def test_a_loader_recreated_from_its_class_has_installed_options(images):
    """Lightning recreates loaders with the arguments of their class."""
    install(device="cpu", exact=True)
    loader = Subclass(images, batch_size=5)
    again = type(loader)(images, batch_size=3)
    assert again.exact and again.batch_size == 3 and isinstance(again, dali_compat.DataLoader)


# ---- options and uninstall()


def test_installed_options_apply_unless_a_loader_overrides_them(images):
    install(exact=True, device="cpu", fallback="silent", on_error="skip")
    loader = data.DataLoader(images, 5)
    assert (loader.exact, loader.device, loader.fallback) == (True, "cpu", "silent")
    assert loader.on_error == "skip"
    assert data.DataLoader(images, 5, exact=False).exact is False
    assert dali_compat.DataLoader(images, 5).exact is False  # does not apply to dali_compat.DataLoader


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match="fallback must be"):
        install(fallback="never")
    with pytest.raises(TypeError, match="unexpected option 'speed'"):
        install(speed=2)
    assert Patched.now is None


def test_a_fallback_warns_at_the_users_line(images):
    install(device="cpu")
    images.loader = lambda path: EXACT
    with pytest.warns(FallbackWarning, match="custom loader") as warned:
        data.DataLoader(images, 5)
    assert warned[0].filename == __file__
    with install(device="cpu", fallback="error"), pytest.raises(RuntimeError, match="custom loader"):
        data.DataLoader(images, 5)


class ReadsTensor(data.Dataset):
    """A custom data set whose code reads the tensors."""

    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return EXACT(Image.open(self.files[index]).convert("RGB")) // 2, index


class ReadsArray(ReadsTensor):
    def __getitem__(self, index):
        return torch.from_numpy(np.array(Image.open(self.files[index]).convert("RGB"))[:16, :16]), index


class ReadsByTorchvision(data.Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return read_image(self.files[index])[:1, :16, :16], index


class StreamsArrays(data.IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        for file in self.files:
            yield torch.from_numpy(np.array(Image.open(file).convert("RGB"))[:16, :16])


STAY_TORCHS = {  # data sets whose loaders stay torch's, with the reason
    ReadsTensor: r"uses the tensor's floor_divide \(.*test_install\.py:\d+\); do this on the batch",
    ReadsArray: r"uses the image's pixels \(.*test_install\.py:\d+\); do this with torchvision's transforms",
    ReadsByTorchvision: "ReadsByTorchvision uses the tensor's getitem",
    StreamsArrays: "StreamsArrays uses the image's pixels",
    lambda files: data.Subset(ReadsTensor(files), [0, 1]): "ReadsTensor uses the tensor's floor_divide",
    lambda files: WrapsDataset(ReadsArray(files)): "WrapsDataset uses the image's pixels",
}


@pytest.mark.parametrize("make", STAY_TORCHS)
def test_a_loader_of_images_that_stays_torchs_gives_the_reason(images, make, capsys):
    """The reason is in a warning at the user's line, in an error and, if verbose, in a line on stderr."""
    dataset = make([path for path, _ in images.samples])
    with install(device="cpu"), pytest.warns(FallbackWarning, match=STAY_TORCHS[make]) as warned:
        assert type(data.DataLoader(dataset, 2)) is ImportedBefore
    assert len(warned) == 1 and warned[0].filename == __file__
    with install(device="cpu", fallback="error"), pytest.raises(RuntimeError, match=STAY_TORCHS[make]):
        data.DataLoader(dataset, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with install(device="cpu", verbose=True):
            data.DataLoader(dataset, 2)
    assert re.search(
        rf"test_install.py:\d+ runs on torch's own loader, because .*{STAY_TORCHS[make]}", capsys.readouterr().err
    )


def test_verbose_prints_a_line_per_loader_and_change_of_route(images, capsys):
    with install(device="cpu", verbose=True):
        loader = data.DataLoader(images, 5)
        line = r"\S*test_install.py:\d+ runs on "
        assert re.fullmatch(line + r"DALI \(cpu\)\n", capsys.readouterr().err)
        list(loader)
        data.DataLoader(Numbers())
        assert re.fullmatch(
            line + "torch's own loader, because no images were found in Numbers\n", capsys.readouterr().err
        )
        images.loader = lambda path: EXACT
        loader = data.DataLoader(images, 5, fallback="silent")
        assert re.fullmatch(line + "torchvision, because .* has a custom loader.*\n", capsys.readouterr().err)
        images.loader = default_loader
        list(loader)
        assert re.fullmatch(line + r"DALI \(cpu\)\n", capsys.readouterr().err)
    data.DataLoader(images, 5)
    assert capsys.readouterr().err == ""


def test_install_as_a_context_restores_the_previous_options(images):
    with install(device="cpu"):
        with install(device="cpu", exact=True):
            assert data.DataLoader(images).exact
        assert not data.DataLoader(images).exact
        with pytest.raises(KeyError), install(exact=True):
            raise KeyError
        assert type(data.DataLoader(images)) is InstalledLoader
    assert type(data.DataLoader(images)) is ImportedBefore


def test_uninstall_restores_torchs_constructor_and_import_hooks(images):
    finders, prepares = list(sys.meta_path), multiprocessing.spawn.get_preparation_data
    install()
    install(exact=True)
    assert data.DataLoader.__init__ is not TORCHS
    uninstall()
    uninstall()
    assert data.DataLoader.__init__ is TORCHS and sys.meta_path == finders
    assert multiprocessing.spawn.get_preparation_data is prepares
    assert type(data.DataLoader(images)) is ImportedBefore


def test_uninstall_keeps_a_wrapper_around_the_constructor(images, monkeypatch):
    install(device="cpu")
    ours = data.DataLoader.__init__
    monkeypatch.setattr(data.DataLoader, "__init__", lambda self, *args, **kwargs: ours(self, *args, **kwargs))
    uninstall()
    assert type(data.DataLoader(images)) is ImportedBefore
    monkeypatch.undo()
    install(device="cpu")
    assert type(data.DataLoader(images)) is InstalledLoader


def test_install_logs_its_changes(caplog):
    with caplog.at_level(logging.INFO, "dali_compat"):
        install()
    assert "torch.utils.data.DataLoader uses DALI" in caplog.text


def copied(image):
    return image.copy() if hasattr(image, "copy") else image.clone()


# ---- torch's loader with data sets of dali_compat


@pytest.fixture
def forget_warnings():
    dataset_base._warned[0] = 0
    yield
    dataset_base._warned[0] = 0


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: data.ConcatDataset([data.Subset(d, range(9)), d])])
def test_torchs_loader_of_our_folder_warns_once(image_root, wrap, forget_warnings):
    dataset = DALIImageFolder(image_root, SMALL)
    assert dataset[0][1] == 0  # indexing does not warn
    with pytest.warns(FallbackWarning, match="torch's own loader reads DALIImageFolder") as warned:
        list(data.DataLoader(wrap(dataset), 5))
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(data.DataLoader(wrap(DALIImageFolder(image_root, SMALL)), 5))


def test_a_warning_in_a_worker_process_is_not_repeated(image_root, forget_warnings):
    """Later workers and epochs do not repeat it."""
    loader = data.DataLoader(DALIImageFolder(image_root, SMALL), 5, num_workers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FallbackWarning, match="torch's own loader reads DALIImageFolder"):
            list(loader)
        assert len(list(loader)) == 5


class CountsWarnings(data.Dataset):
    """A data set whose targets count the warnings during the read."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            image, _ = self.inner[index]
        return copied(image), len(caught)


@pytest.mark.alike
@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_our_loader_of_a_wrapped_folder_does_not_warn(image_root, context, forget_warnings):
    """Spawned workers must not recommend dali_compat's loader when it is already in use."""
    dataset = CountsWarnings(DALIImageFolder(image_root, SMALL))
    given = {"num_workers": context is not None, "multiprocessing_context": context}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = dali_compat.DataLoader(dataset, 12, device="cpu", **given)
        epochs = 1 if context == "spawn" else 2  # starting a spawned worker takes seconds
        labels = torch.cat([labels for _ in range(epochs) for _, labels in loader])
    assert len(labels) == epochs * len(dataset) and labels.sum() == 0
    assert not [one for one in caught if issubclass(one.category, FallbackWarning)]
    if context != "spawn":  # a spawned worker of torch's loader warns
        assert torch.cat([labels for _, labels in data.DataLoader(dataset, 12, **given)]).sum() == 0


def test_indexing_a_folder_does_not_warn(image_root, forget_warnings):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert DALIImageFolder(image_root, SMALL)[0][1] == 0


def test_a_fallback_warns_only_about_its_reason(image_root, forget_warnings):
    """The warning about torch's loader does not follow."""
    dataset = DALIImageFolder(image_root, SMALL, loader=lambda path: pil_loader(path).quantize(8))
    with pytest.warns(FallbackWarning) as warned:
        list(dali_compat.DataLoader(dataset, 5))
    assert len(warned) == 1 and "custom loader" in str(warned[0].message)


class WrapsDataset(data.Dataset):
    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, *rest = self.inner[index]
        return copied(image), *rest


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("workers", [0, 1])
def test_our_loader_on_a_fallback_does_not_warn_about_a_wrapped_folder(image_root, forget_warnings, on_error, workers):
    loader = dali_compat.DataLoader(
        WrapsDataset(DALIImageFolder(image_root, SMALL)), 5, num_workers=workers, on_error=on_error, fallback="silent"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sum(len(labels) for _, labels in loader) == len(loader.dataset)


@pytest.mark.parametrize("wrap", [WrapsDataset, lambda d: data.Subset(WrapsDataset(d), range(9))])
def test_torchs_loader_of_a_wrapped_folder_warns_and_names_the_folder(image_root, forget_warnings, wrap):
    with pytest.warns(
        FallbackWarning, match="reads DALIImageFolder through WrapsDataset, .* the DALIImageFolder itself"
    ):
        list(data.DataLoader(wrap(DALIImageFolder(image_root, SMALL)), 5))

"""Common mistakes: the error has the class of torch's error and names the object at fault and a remedy."""

import shutil
import threading
from pathlib import Path

import pytest
import torch
from helpers import make_folder
from PIL import Image
from torch.utils import data
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from contract.both import error_of
from dali_compat import DALIImageFolder, DataLoader

SMALL = T.Compose([T.Resize((16, 16)), T.ToTensor()])
NORMALIZE = T.Normalize((0.5,) * 3, (0.2,) * 3)
FIRST = T.Resize((16, 16))


class Files(data.Dataset):
    """A custom data set. ``change`` takes the sample and its index, and returns another sample."""

    def __init__(self, root, transform=SMALL, change=None, mode="RGB", size=None):
        self.paths = sorted(map(str, Path(root).rglob("*.jpg")))
        self.transform, self.change, self.mode, self.size = transform, change, mode, size or len(self.paths)

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        image = Image.open(self.paths[i]).convert(self.mode)
        sample = (self.transform(image) if self.transform else image), i % 2
        return self.change(sample, i) if self.change else sample


class WithoutLen(data.Dataset):
    def __getitem__(self, i):
        return i


class HoldsLock(Files):
    def __init__(self, root):
        super().__init__(root)
        self.lock = threading.Lock()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("mistakes") / "root", classes=2, per_class=4, special=False)


def _return_none(image):
    return None


# Each has a transform of an image folder and of a custom data set, and parts of the message of both.
TRANSFORMS = {
    "no transform": (None, "Image'>. Add ToTensor()"),
    "ToTensor twice": (T.Compose([SMALL, T.ToTensor()]), "remove this ToTensor()"),
    "Normalize before ToTensor": (T.Compose([FIRST, NORMALIZE, T.ToTensor()]), "Put ToTensor(), or v2.ToImage()"),
    "Normalize of a PIL image, v2": (
        v2.Compose([FIRST, v2.Normalize([0.5], [0.5])]),
        "Normalize() does not support PIL images. Put ToTensor(), or v2.ToImage()",
    ),
    "Normalize of uint8": (T.Compose([FIRST, T.PILToTensor(), NORMALIZE]), "Got torch.uint8. Put ToTensor(), or"),
    "Normalize of gray": (
        T.Compose([FIRST, T.Grayscale(), T.ToTensor(), NORMALIZE]),
        "Normalize() needs one mean per channel. Convert",
    ),
    "Normalize with 4 values": (
        T.Compose([SMALL, T.Normalize((0.5,) * 4, (0.2,) * 4)]),
        "Normalize() needs one mean per channel. Convert",
    ),
    "sizes differ": (
        T.Compose([T.Resize(20), T.ToTensor()]),
        ("index 1: ", "add CenterCrop(n), or write Resize((n, n))"),
    ),
    "crop too large": (T.Compose([T.RandomCrop(400), T.ToTensor()]), ("(400, 400)", "is larger than input image size")),
    "returns None": (_return_none, "found <class 'NoneType'>. Return a value instead of None"),
    "returns None, then ToTensor": (T.Compose([_return_none, T.ToTensor()]), "Return a value instead of None"),
    "class in Compose": (T.Compose([FIRST, T.ToTensor]), "If ToTensor is a transform, write ToTensor()"),
    "class": (T.ToTensor, "If ToTensor is a transform, write ToTensor()"),
    "list": ([FIRST, T.ToTensor()], "write Compose(list)"),
    "None in Compose": (T.Compose([FIRST, None, T.ToTensor()]), "'NoneType' object is not callable"),
    "v1 after v2": (T.Compose([FIRST, v2.ToImage(), T.ToTensor()]), "remove this ToTensor()"),
    "ToPILImage of a PIL image": (T.Compose([T.ToPILImage(), T.ToTensor()]), "pic should be Tensor or ndarray"),
    "RandomErasing before ToTensor": (T.Compose([FIRST, T.RandomErasing(1.0), T.ToTensor()]), "Put ToTensor()"),
    "Resize to floats": (T.Compose([T.Resize((16.0, 16.0)), T.ToTensor()]), "'float' object"),
    "Resize to text": (T.Compose([T.Resize("16"), T.ToTensor()]), "'str' object"),
}
# Parts of the message, the changed sample, and arguments of the data set and of the loader.
SAMPLES = {
    "one sample is None": (("index 4", "Return a sample without None"), lambda sample, i: None if i == 4 else sample),
    "one label is None": (
        ("index 1 has NoneType at [1]", "Return a sample without None"),
        lambda sample, i: (sample[0], None if i == 1 else 0),
    ),
    "labels are None": ("Return a value instead of None", lambda sample, i: (sample[0], None)),
    "one label is text": (
        ("index 1 has str at [1]", "Return the same types"),
        lambda sample, i: (sample[0], "cat" if i == 1 else 0),
    ),
    "boxes": (
        ("index 1 has", "(2, 4) at [1]", "Pass a collate_fn"),
        lambda sample, i: (sample[0], torch.zeros(i + 1, 4)),
    ),
    "structures": (("index 1", "Return the same types"), lambda sample, i: sample if i != 1 else {"image": sample[0]}),
}
LENGTHS = {
    "too long": ("If an index of this batch has no sample, correct Files.__len__(), which returns 9", {}),
    "sampler beyond the end": ("Index 99 is out of range for 9 samples. Check the sampler", {"sampler": [0, 99]}),
    "sampler of floats": ("The sampler must return integers, but it returned [0, 1.0]", {"sampler": [0, 1.0]}),
}
ARGUMENTS = {
    "batch size": ({"batch_size": -1}, "batch_size=-1"),
    "float batch size": ({"batch_size": 2.0}, "batch_size=2.0"),
    "batch sampler and batch size": ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler option is mutually"),
    "shuffle and sampler": ({"sampler": [0], "shuffle": True}, "sampler option is mutually exclusive with shuffle"),
    "persistent workers": ({"persistent_workers": True}, "needs num_workers > 0"),
    "generator": ({"generator": 3, "shuffle": True}, "generator must be a torch.Generator, such as"),
    "workers": ({"num_workers": -1}, "use num_workers=0"),
    "float workers": ({"num_workers": 1.5}, "'float' object"),
}


def _errors_of_both(ours, theirs, **torchs):
    """Return the errors of our loader and torch's loader in an epoch."""
    options = {"batch_size": 8} | torchs if "batch_sampler" not in torchs else torchs
    mine = error_of(lambda: list(DataLoader(ours, device="cpu", fallback="silent", **options)))
    return mine, error_of(lambda: list(data.DataLoader(theirs, **options)))


def _assert_error(errors, *parts):
    mine, theirs = errors
    assert isinstance(mine, type(theirs)) and all(part in str(mine) for part in parts), mine


def _as_tuple(parts):
    return (parts,) if isinstance(parts, str) else parts


@pytest.mark.parametrize("make", [DALIImageFolder, Files])
@pytest.mark.parametrize("case", TRANSFORMS)
def test_a_wrong_transform_is_named_with_a_remedy(root, case, make):
    transform, parts = TRANSFORMS[case]
    _assert_error(_errors_of_both(make(root, transform), make(root, transform)), *_as_tuple(parts))


@pytest.mark.parametrize("case, make", [("ToTensor twice", DALIImageFolder), ("class", Files)])
def test_a_wrong_transform_is_named_in_workers(root, case, make):
    transform, parts = TRANSFORMS[case]
    _assert_error(_errors_of_both(make(root, transform), make(root, transform), num_workers=1), *_as_tuple(parts))


@pytest.mark.parametrize("case", SAMPLES)
def test_samples_that_torch_cannot_collate_are_named(root, case):
    parts, change = SAMPLES[case]
    _assert_error(_errors_of_both(*(Files(root, SMALL, change) for _ in range(2))), *_as_tuple(parts))


@pytest.mark.parametrize("case, num_workers", [*((case, 0) for case in LENGTHS), ("too long", 1)])
def test_an_index_without_a_sample_is_named(root, case, num_workers):
    part, options = LENGTHS[case]
    _assert_error(
        _errors_of_both(*(Files(root, size=9) for _ in range(2)), num_workers=num_workers, batch_size=9, **options),
        part,
    )


def test_an_index_outside_of_the_data_set_of_a_subset_is_named(root):
    subsets = [data.Subset(make(root, SMALL), [0, 77]) for make in (DALIImageFolder, ImageFolder)]
    _assert_error(
        _errors_of_both(*subsets), "Index 77 is out of range for 8 samples. Check the sampler, or the indices of Subset"
    )


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_images_of_other_modes_than_normalize_takes_are_explained(root, mode):
    sets = [Files(root, T.Compose([SMALL, NORMALIZE]), mode=mode) for _ in range(2)]
    _assert_error(_errors_of_both(*sets), "Convert the images, as in Image.open(path).convert('RGB')")


@pytest.mark.parametrize("case", ARGUMENTS)
@pytest.mark.parametrize("make", [DALIImageFolder, Files])
def test_a_wrong_argument_is_named(root, case, make):
    arguments, part = ARGUMENTS[case]
    _assert_error(_errors_of_both(make(root, SMALL), make(root, SMALL), **arguments), part)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_class_instead_of_a_data_set_is_named(shuffle):
    _assert_error(
        _errors_of_both(Files, Files, shuffle=shuffle),
        "Pass a data set, such as ImageFolder(root), instead of its class",
    )


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_data_set_without_length_is_named(shuffle):
    _assert_error(
        _errors_of_both(WithoutLen(), WithoutLen(), shuffle=shuffle),
        "If WithoutLen is the data set's class, define its __len__()",
    )


@pytest.mark.parametrize(
    "make", [HoldsLock, lambda root: DALIImageFolder(root, T.Lambda(lambda image: image))], ids=["lock", "lambda"]
)
def test_what_cannot_be_sent_to_spawned_workers_is_explained(root, make):
    errors = _errors_of_both(make(root), make(root), num_workers=1, multiprocessing_context="spawn")
    _assert_error(errors, "Define it in a module, create it in the worker, or use num_workers=0")


@pytest.mark.parametrize("folder", ["missing", "empty", "file", "flat"])
def test_a_wrong_root_is_named(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    (tmp_path / "flat").mkdir()
    for place in (tmp_path / "flat" / "a.jpg", tmp_path / "file"):
        Image.new("RGB", (9, 9)).save(place, "JPEG")
    mine, theirs = (error_of(make, tmp_path / folder) for make in (DALIImageFolder, ImageFolder))
    _assert_error((mine, theirs), str(tmp_path / folder))


@pytest.mark.parametrize("make", [DALIImageFolder, Files])
def test_a_file_that_was_deleted_between_epochs_is_named(root, tmp_path, make):
    shutil.copytree(root, tmp_path / "copy")
    dataset = make(tmp_path / "copy", SMALL)
    loader = DataLoader(dataset, 2, device="cpu", fallback="error")
    list(loader)
    gone = Path(dataset.paths[3] if make is Files else dataset.samples[3][0])
    gone.unlink()
    _assert_error((error_of(list, loader), error_of(dataset.__getitem__, 3)), str(gone))


@pytest.mark.parametrize("device", ["cuda:99", "gpu", 3.5])
@pytest.mark.parametrize("make", [DALIImageFolder, Files])
def test_a_device_that_does_not_exist_is_named(root, make, device):
    error = error_of(lambda: list(DataLoader(make(root, SMALL), device=device)))
    assert isinstance(error, (RuntimeError, ValueError)) and str(device) in str(error) and "'cpu'" in str(error)


@pytest.mark.parametrize("use", [lambda loader: loader[0], next], ids=["index", "next"])
def test_a_loader_is_no_sequence_and_no_iterator(root, use):
    mine, theirs = (error_of(use, make(Files(root))) for make in (DataLoader, data.DataLoader))
    _assert_error((mine, theirs), str(theirs))

"""Arguments and attributes of the loader, compared with torch's."""

import inspect
import warnings

import pytest
import torch
from torch.utils import data
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

import dali_compat
from contract.both import EXACT, error_of, ours, outlines, stock
from contract.own_datasets import Plain
from dali_compat import DALIDataLoader, DALIImageFolder, DataLoader
from dali_compat.routes import _depth

OPTIONS = {
    "device": None,
    "exact": False,
    "fallback": "warn",
    "memory_format": torch.contiguous_format,
    "on_error": "raise",
    "on_error_in_python": False,
    "snapshot_every_n_steps": 1,
}


def _parameters_of(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


# ---- signatures


@pytest.mark.parametrize("of", [lambda c: c, lambda c: c.__init__, lambda c: object.__new__(c).__init__])
def test_signature_is_torchs_and_our_options(of):
    torchs, mine = _parameters_of(of(data.DataLoader)), _parameters_of(of(DataLoader))
    assert mine[: len(torchs)] == torchs
    assert mine[len(torchs) :] == [(name, inspect.Parameter.KEYWORD_ONLY, value) for name, value in OPTIONS.items()]


def test_signature_of_the_folder_is_torchvisions_and_ours():
    torchvisions, mine = _parameters_of(ImageFolder), _parameters_of(DALIImageFolder)
    assert mine[: len(torchvisions)] == torchvisions
    assert mine[len(torchvisions) :] == [
        *((name, inspect.Parameter.KEYWORD_ONLY, False) for name in ("orient", "return_index", "index_cache")),
        *((name, inspect.Parameter.KEYWORD_ONLY, None) for name in ("storage_options", "disk_cache")),
    ]


def test_public_names_exist_and_classes_are_torchs_subclasses(folder):
    loader = ours(folder)
    assert DALIDataLoader is DataLoader and set(dali_compat.__all__) <= set(dir(dali_compat))
    assert isinstance(loader, data.DataLoader) and type(loader).__name__ == "DataLoader"
    assert isinstance(folder, ImageFolder)
    assert isinstance(iter(loader), data.dataloader._BaseDataLoaderIter)


def test_a_subclass_of_the_subscripted_class_works(folder):
    class Mine(DataLoader[int]):
        pass

    assert outlines(Mine(folder, 4, fallback="error")) == outlines(stock(folder, 4))


def test_positional_arguments_are_torchs(folder):
    def collate(samples):
        return [sample[1] for sample in samples]

    arguments = (5, None, None, None, 2, collate, False, True, 0, None, None, torch.Generator())
    mine, theirs = ours(folder, *arguments), stock(folder, *arguments)
    assert (mine.collate_fn, mine.drop_last, mine.num_workers) == (collate, True, 2)
    assert [*mine] == [*theirs]


# ---- errors of arguments

BAD_ARGUMENTS = {
    "num_workers": dict(num_workers=-1),
    "timeout": dict(timeout=-1),
    "prefetch_factor without workers": dict(prefetch_factor=2),
    "prefetch_factor": dict(num_workers=1, prefetch_factor=-1),
    "persistent_workers": dict(persistent_workers=True),
    "sampler and shuffle": dict(sampler=[1], shuffle=True),
    "batch_sampler and batch_size": dict(batch_sampler=[[1]], batch_size=3),
    "batch_sampler and drop_last": dict(batch_sampler=[[1]], drop_last=True),
    "batch_sampler and sampler": dict(batch_sampler=[[1]], sampler=[1]),
    "batch_size=None and drop_last": dict(batch_size=None, drop_last=True),
    "batch_size": dict(batch_size=0),
    "type of batch_size": dict(batch_size="3"),
    "type of drop_last": dict(drop_last=3),
    "context without workers": dict(multiprocessing_context="fork"),
    "context": dict(num_workers=1, multiprocessing_context="knife"),
    "type of context": dict(num_workers=1, multiprocessing_context=3),
    "unknown": dict(no_such_argument=1),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_errors_of_arguments_are_torchs(folder, case):
    mine, theirs = error_of(ours, folder, **BAD_ARGUMENTS[case]), error_of(stock, folder, **BAD_ARGUMENTS[case])
    assert type(mine) is type(theirs) and str(mine) == str(theirs)


@pytest.mark.parametrize(
    "made, processes",
    [
        (lambda root: DALIImageFolder(root, EXACT), False),
        (lambda root: DALIImageFolder(root, T.Compose([*EXACT.transforms, T.Lambda(abs)])), True),
        (lambda root: Plain(ImageFolder(root)), True),
        (lambda root: data.TensorDataset(torch.zeros(4)), True),
    ],
    ids=["threads", "function", "custom data set", "TensorDataset"],
)
def test_too_many_workers_warn_only_if_they_are_processes(image_root, made, processes):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        DataLoader(made(image_root), num_workers=10**4, device="cpu", fallback="silent")
    assert [str(one.message)[:40] for one in warned] == ["This DataLoader will create 10000 worker"] * processes


class Stream(data.IterableDataset):
    def __iter__(self):
        return iter(range(5))


@pytest.mark.parametrize("arguments", [dict(shuffle=True), dict(sampler=[1]), dict(batch_sampler=[[1]])])
def test_errors_of_arguments_with_an_iterable_data_set(arguments):
    mine, theirs = (error_of(make, Stream(), **arguments) for make in (data.DataLoader, DataLoader))
    assert type(mine) is type(theirs) and str(mine) == str(theirs)


def test_shuffling_an_empty_data_set_raises_torchs_error(tmp_path):
    (tmp_path / "empty").mkdir()
    dataset = DALIImageFolder(tmp_path, EXACT, allow_empty=True)
    mine, theirs = error_of(ours, dataset, shuffle=True), error_of(stock, dataset, shuffle=True)
    assert type(mine) is type(theirs) and str(mine) == str(theirs)
    assert list(ours(dataset)) == list(stock(dataset)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        dict(fallback="loud"),
        dict(device="gpu"),
        dict(memory_format=torch.preserve_format),
    ],
)
def test_errors_of_added_options_name_the_option(folder, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DataLoader(folder, **wrong)


def test_len_of_an_iterable_data_set_is_torchs():
    loader = DataLoader(Stream(), 2, fallback="silent")
    mine, theirs = error_of(len, loader), error_of(len, data.DataLoader(Stream(), 2))
    assert type(mine) is type(theirs) is TypeError and str(mine) == str(theirs)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_read_only_attributes_raise_torchs_error_when_set(folder, name):
    mine, theirs = (error_of(setattr, make(folder), name, 1) for make in (ours, stock))
    assert type(mine) is type(theirs) is ValueError and str(mine) == str(theirs)


def test_public_attributes_are_constructor_arguments_as_in_torch(folder):
    """Frameworks rebuild loaders from public attributes."""
    mine, theirs = vars(ours(folder, 4, num_workers=2)), vars(stock(folder, 4, num_workers=2))
    public = {name for name in mine if not name.startswith("_")}
    assert public == {name for name in theirs if not name.startswith("_")} | set(OPTIONS)
    assert public <= set(inspect.signature(DataLoader).parameters)


# ---- arguments without effect on batches


def _fail_in_worker(worker):
    raise AssertionError("no worker process must start")


ACCEPTED = {
    "worker_init_fn": (dict(num_workers=2, worker_init_fn=_fail_in_worker), "worker_init_fn=_fail_in_worker"),
    "pin_memory": (dict(pin_memory=True), "pin_memory=True"),
    "timeout": (dict(num_workers=2, timeout=5), "timeout=5"),
    "multiprocessing_context": (dict(num_workers=2, multiprocessing_context="fork"), "multiprocessing_context="),
    "in_order": (dict(num_workers=2, in_order=False), "in_order=False"),
    "num_workers": (dict(num_workers=3), "3 CPU threads"),
    "prefetch_factor": (dict(num_workers=1, prefetch_factor=5), "5 batches in flight"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_explain_shows_each_argument_or_lists_it_as_without_effect(folder, name):
    arguments, line = ACCEPTED[name]
    if name not in {*inspect.signature(data.DataLoader).parameters}:
        pytest.skip("not an argument of this torch")
    loader = ours(folder, 5, **arguments)
    explained = loader.explain()
    assert line in explained
    if name not in ("num_workers", "prefetch_factor"):
        assert line in explained.split("without effect:")[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # torch's, for pin_memory without a GPU
        found = outlines(loader)
    assert found == outlines(stock(folder, 5))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of torch's unfinished iterator
@pytest.mark.parametrize("make", [ours, stock])
def test_prefetch_factor_of_zero_raises_when_an_epoch_begins(folder, make):
    loader = make(folder, num_workers=1, prefetch_factor=0)
    with pytest.raises(AssertionError):
        iter(loader)


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}, {"num_workers": 2, "prefetch_factor": 3}])
def test_explain_does_not_list_defaults_as_without_effect(folder, arguments):
    assert "without effect" not in ours(folder, **arguments).explain()


@pytest.mark.parametrize(
    ("arguments", "cpu", "gpu"),
    [
        ({}, 2, 4),
        ({"num_workers": 2}, 2, 4),
        ({"num_workers": 2, "prefetch_factor": None}, 2, 4),
        ({"num_workers": 2, "prefetch_factor": 2}, 2, 2),
        ({"num_workers": 2, "prefetch_factor": 7}, 7, 7),
    ],
)
def test_batches_in_flight_follow_prefetch_factor_or_the_device(folder, arguments, cpu, gpu):
    """torch sets prefetch_factor to 2 if there are workers and none is given."""
    loader = ours(folder, 4, **arguments)
    assert [_depth(loader, torch.device(name)) for name in ("cpu", "cuda")] == [cpu, gpu]

"""After an interrupt, wherever it came, no image stands beside another one's label, no batch is given twice, the next
epoch is right, and so is the state. The epoch itself is over, unless the interrupt was taken for a batch's own error.

CI tries some hundred places; INTERRUPT_PLACES=100000 tries them all.
"""

import os

import pytest
import torch
from contract.both import EXACT, EXACT_FLIPPED, ours, stock
from helpers import ALL, make_folder
from PIL import Image
from torch.utils import data

from dali_compat import DALIImageFolder, DALIRecordIO
from dali_compat.archives.pack import pack
from faults.interrupts import Alarm, Interrupt, Places, Truth

PLACES = int(os.environ.get("INTERRUPT_PLACES", 24 if ALL else 12))  # of a case


def _shifted(label):
    return label + 10


def _records(root):
    if not (root.parent / "all.rec").exists():
        pack(root, root.parent / "all.rec")
    return DALIRecordIO(root.parent / "all.rec", EXACT, return_index=True)


def _two_plans(root):
    first = DALIImageFolder(root, EXACT, return_index=True)
    return data.ConcatDataset([first, DALIImageFolder(root, EXACT_FLIPPED, _shifted, return_index=True)])


def _files(root, transform=EXACT):
    return DALIImageFolder(root, transform, return_index=True)


CASES = {  # name: data set of a folder, options of the loader
    "files": (_files, dict(batch_size=3)),
    "files drawn ahead": (_files, dict(batch_size=3, num_workers=2)),
    "records": (_records, dict(batch_size=3)),
    "two plans in a batch": (_two_plans, dict(batch_size=5)),
    "a cache": (_files, dict(batch_size=3, cache=1 << 20)),
    "growing batches": (_files, dict(batch_sampler=[[0], [1, 2], [3, 4, 5, 6, 7, 8], [9, 10, 11]])),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """12 images of two classes; two of them are read by PIL."""
    root = make_folder(tmp_path_factory.mktemp("interrupted") / "images", classes=2, per_class=5, special=False)
    for name in ("class_a", "class_b"):
        with Image.open(root / name / "00.jpg") as image:
            image.convert("CMYK").transpose(Image.Transpose.ROTATE_90).save(root / name / "cmyk.jpg")
    return root


def _loader(make, dataset, options, device="cpu"):
    shuffled = {} if "batch_sampler" in options else dict(shuffle=True)
    if make is stock:
        options = {name: value for name, value in options.items() if name != "cache"}
        return stock(dataset, **shuffled, **options)
    return ours(dataset, **shuffled, **options, device=device, exact=device == "cuda", fallback="silent")


def _order(loader, seed):
    """(label, index) of every sample of an epoch's batches."""
    torch.manual_seed(seed)
    return [list(zip(labels.tolist(), indices.tolist(), strict=True)) for *_, labels, indices in loader]


def _interrupted(loader, at, error, within=""):
    """Batches until the interrupt, the iterator if there is one, and the place."""
    batches, iterator = [], None
    with Places(at, error, within) as places:
        try:
            iterator = iter(loader)
            for batch in iterator:
                batches.append(batch)  # noqa: PERF402  (what came before an interrupt counts)
        except error:
            pass
        except RuntimeError as refusal:  # a batch has taken the exception for its own error, and others are met first
            assert error is Alarm and "iter(loader) starts another" in str(refusal)
    return batches, iterator, places


def _rest(iterator, error):
    """What the same iterator gives afterwards; None where it refuses."""
    batches = []
    while True:
        try:
            batches.append(next(iterator))
        except StopIteration:
            return batches
        except error:  # an exception that was taken for a batch's own comes with that batch
            continue
        except RuntimeError as refusal:
            assert "iter(loader) starts another" in str(refusal)
            with pytest.raises(RuntimeError, match="an interrupt has stopped this epoch"):
                next(iterator)
            return None


def _is_all_but_one(given: list, order: list) -> bool:
    """One batch may be lost: the one on its way to the caller."""
    return given == order or any(given == order[:i] + order[i + 1 :] for i in range(len(order)))


@pytest.mark.alike
@pytest.mark.parametrize("error", [Interrupt, Alarm])
@pytest.mark.parametrize("case", CASES)
def test_an_interrupt_at_every_place(root, case, error):
    _interrupt_at_every_place(root, case, error, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_an_interrupt_at_every_place_beside_a_gpu(root, case):
    _interrupt_at_every_place(root, case, Interrupt, "cuda")


def _interrupt_at_every_place(root, case, error, device):
    """Beside a GPU at fewer places: a pipeline takes longer to build."""
    make, options = CASES[case]
    fewer = 2 if device == "cuda" else 1
    dataset = make(root)
    truth, loader = Truth(dataset), _loader(ours, dataset, options, device)
    torchs = _loader(stock, list(truth.images), options | {"num_workers": 0})  # without images; in the same order:
    assert _order(torchs, 0) == _order(_loader(stock, dataset, options), 0)
    torch.manual_seed(0)
    list(loader)
    lines = _interrupted(loader, None, error)[2].passed
    assert lines > 100
    over = 0
    for at in range(0, lines, max(1, lines * fewer // PLACES)):
        order = _order(torchs, at)
        torch.manual_seed(at)
        batches, iterator, places = _interrupted(loader, at, error)
        given = [truth.check(batch) for batch in batches]
        if iterator is not None:
            resumed = _loader(ours, dataset, options, device)
            resumed.load_state_dict(loader.state_dict())
            rest = _rest(iterator, error)  # first: it may draw its order now
            if rest is None:
                over += 1
                assert all(pipeline.idle for pipeline in loader._route._pipelines), places.where
            else:
                whole = given + [truth.check(batch) for batch in rest]
                assert _is_all_but_one(whole, order), (places.where, whole, order)
            if given != order:
                after = [truth.check(batch) for batch in resumed]
                assert _is_all_but_one(given + after, order), (places.where, given, after, order)
        torch.manual_seed(at)
        for epoch in range(2):
            order = _order(torchs, at + epoch)
            torch.manual_seed(at + epoch)
            assert [truth.check(batch) for batch in loader] == order, (places.where, epoch)
    assert over or error is Alarm or device == "cuda"  # where the few places may all lie outside of next()
    iterator = None
    for pipeline in loader._route._pipelines:
        assert pipeline.idle and not pipeline._done and not pipeline._wanted


def _plain(root):
    """Of the folder's images those that DALI reads."""
    dataset = _files(root)
    return data.Subset(dataset, [i for i, (path, _) in enumerate(dataset.samples) if "cmyk" not in path])


@pytest.mark.parametrize("cache", [None, 1 << 30], ids=["from files", "from a cache"])
def test_a_batch_that_is_not_the_one_due_is_an_error(root, cache):
    """Should DALI ever give another: the numbers beside the pixels tell."""
    dataset = _plain(root)
    options = dict(num_workers=1, prefetch_factor=4, device="cpu", cache=cache)
    truth, loader = Truth(dataset), ours(dataset, 2, **options)
    list(loader)
    iterator = iter(loader)
    batches = [next(iterator), next(iterator)]
    (pipeline,) = [one for one in loader._route._pipelines if len(one._feed.flight) > 1]
    assert {len(batch.arrays[1]) for batch in pipeline._feed.flight} == {2}
    pipeline._feed.flight.reverse()
    with pytest.raises(RuntimeError, match="different batch than was due; iter"):
        batches.extend(iterator)
    with pytest.raises(RuntimeError, match="an interrupt has stopped this epoch"):
        next(iterator)
    assert sum(map(truth.check, batches), []) == list(truth.images)[: 2 * len(batches)]
    assert sum(map(truth.check, loader), []) == list(truth.images)


@pytest.mark.parametrize("error", [Interrupt, Alarm])
def test_an_interrupt_at_every_line_of_the_iterator(root, error):
    """Of an epoch of two batches, no place left out."""
    dataset = data.Subset(_plain(root), range(4))
    truth, loader, within = Truth(dataset), ours(dataset, 2, device="cpu"), "/iterator.py"
    order = [truth.check(batch) for batch in loader]
    lines = _interrupted(loader, None, error, within)[2].passed
    assert lines > 50
    for at in range(lines):
        batches, iterator, places = _interrupted(loader, at, error, within)
        given = [truth.check(batch) for batch in batches]
        rest = _rest(iterator, error) if iterator is not None else None
        if rest is not None:
            given += [truth.check(batch) for batch in rest]
            assert _is_all_but_one(given, order), (places.where, given)
        elif error is Interrupt:
            assert given == order[: len(given)], (places.where, given)
        assert [truth.check(batch) for batch in loader] == order, places.where

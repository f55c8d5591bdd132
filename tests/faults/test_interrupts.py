"""Interrupts at any line of the loader.

Afterwards, no image has the label of another, no batch is repeated, and the next epoch and the state are correct. The
epoch itself is over, unless the interrupt was reported as the error of a batch. CI tries a few hundred lines;
INTERRUPT_PLACES=100000 tries all of them.
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
from dali_compat.errors import InconsistentEngine
from faults.interrupts import Alarm, ExpectedSamples, Interrupt, RaiseAtLine

LINES_TRIED = int(os.environ.get("INTERRUPT_PLACES", 24 if ALL else 12))  # lines tried for each case


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


CASES = {  # name: (data set of a folder, options of the loader)
    "files": (_files, dict(batch_size=3)),
    "files drawn ahead": (_files, dict(batch_size=3, num_workers=2)),
    "records": (_records, dict(batch_size=3)),
    "two plans in a batch": (_two_plans, dict(batch_size=5)),
    "growing batches": (_files, dict(batch_sampler=[[0], [1, 2], [3, 4, 5, 6, 7, 8], [9, 10, 11]])),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """12 images of two classes. PIL reads two of them."""
    root = make_folder(tmp_path_factory.mktemp("interrupted") / "images", classes=2, per_class=5, special=False)
    for name in ("class_a", "class_b"):
        with Image.open(root / name / "00.jpg") as image:
            image.convert("CMYK").transpose(Image.Transpose.ROTATE_90).save(root / name / "cmyk.jpg")
    return root


def _loader(make, dataset, options, device="cpu"):
    shuffled = {} if "batch_sampler" in options else dict(shuffle=True)
    if make is stock:
        return stock(dataset, **shuffled, **options)
    return ours(dataset, **shuffled, **options, device=device, exact=device == "cuda", fallback="silent")


def _order(loader, seed):
    """Return (label, index) of all samples in each batch of an epoch."""
    torch.manual_seed(seed)
    return [list(zip(labels.tolist(), indices.tolist(), strict=True)) for *_, labels, indices in loader]


def _run_until_interrupt(loader, at, error, within=""):
    """Return the batches before the interrupt, the iterator if it exists, and the context."""
    batches, iterator = [], None
    with RaiseAtLine(at, error, within) as places:
        try:
            iterator = iter(loader)
            for batch in iterator:
                batches.append(batch)  # noqa: PERF402  (batches before an interrupt count)
        except error:
            pass
        except RuntimeError as refusal:  # reported as the error of a batch
            assert error is Alarm and "iter(loader) starts another" in str(refusal)
    return batches, iterator, places


def _remaining_batches(iterator, error):
    """Return the remaining batches of the same iterator, or None if it refuses to continue."""
    batches = []
    while True:
        try:
            batches.append(next(iterator))
        except StopIteration:
            return batches
        except error:  # the exception is raised with the batch that it was reported for
            continue
        except RuntimeError as refusal:
            assert "iter(loader) starts another" in str(refusal)
            with pytest.raises(RuntimeError, match="an interrupt has stopped this epoch"):
                next(iterator)
            return None


def _lacks_at_most_one(received: list, order: list) -> bool:
    """Return True if at most one batch is missing. The batch in transit to the caller may be lost."""
    return received == order or any(received == order[:i] + order[i + 1 :] for i in range(len(order)))


@pytest.mark.alike
@pytest.mark.parametrize("error", [Interrupt, Alarm])
@pytest.mark.parametrize("case", CASES)
def test_interrupt_at_any_line_leaves_loader_and_state_correct(root, case, error):
    _interrupt_at_many_lines(root, case, error, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_interrupt_at_any_line_on_gpu_leaves_loader_and_state_correct(root, case):
    _interrupt_at_many_lines(root, case, Interrupt, "cuda")


def _interrupt_at_many_lines(root, case, error, device):
    """Try fewer lines on a GPU, because building a pipeline takes longer."""
    make, options = CASES[case]
    fewer = 2 if device == "cuda" else 1
    dataset = make(root)
    expected, loader = ExpectedSamples(dataset), _loader(ours, dataset, options, device)
    torch_loader = _loader(
        stock, list(expected.images), options | {"num_workers": 0}
    )  # without images, in the same order
    assert _order(torch_loader, 0) == _order(_loader(stock, dataset, options), 0)
    torch.manual_seed(0)
    list(loader)
    lines = _run_until_interrupt(loader, None, error)[2].passed
    assert lines > 100
    over = 0
    for at in range(0, lines, max(1, lines * fewer // LINES_TRIED)):
        order = _order(torch_loader, at)
        torch.manual_seed(at)
        batches, iterator, places = _run_until_interrupt(loader, at, error)
        received = [expected.check(batch) for batch in batches]
        if iterator is not None:
            resumed = _loader(ours, dataset, options, device)
            resumed.load_state_dict(loader.state_dict())
            rest = _remaining_batches(iterator, error)  # before the next epoch, because it may draw its order only now
            if rest is None:
                over += 1
                assert all(pipeline.idle for pipeline in loader._route._pipelines), places.where
            else:
                whole = received + [expected.check(batch) for batch in rest]
                assert _lacks_at_most_one(whole, order), (places.where, whole, order)
            if received != order:
                after = [expected.check(batch) for batch in resumed]
                assert _lacks_at_most_one(received + after, order), (places.where, received, after, order)
        torch.manual_seed(at)
        for epoch in range(2):
            order = _order(torch_loader, at + epoch)
            torch.manual_seed(at + epoch)
            assert [expected.check(batch) for batch in loader] == order, (places.where, epoch)
    assert over or error is Alarm or device == "cuda"  # or if the few lines are all outside of next()
    iterator = None
    for pipeline in loader._route._pipelines:
        assert pipeline.idle and not pipeline._done and not pipeline._expected


def _read_by_dali(root):
    """Return the images of the folder that DALI reads."""
    dataset = _files(root)
    return data.Subset(dataset, [i for i, (path, _) in enumerate(dataset.samples) if "cmyk" not in path])


def test_an_exception_of_a_signal_handler_is_raised_instead_of_its_consequence(root):
    """The handler interrupts DALI while it gets a later batch, so that the first batch fails, too."""
    iterator = iter(ours(_files(root), 3, device="cpu"))
    next(iterator)
    first, later = list(iterator._drawn)[:2]
    later.error = Alarm("from a signal handler")

    def fail():
        raise InconsistentEngine("DALI was interrupted")

    first.finish = fail
    with pytest.raises(Alarm, match="from a signal handler"):
        next(iterator)


def test_batch_out_of_order_raises(root):
    """The indices that accompany the pixels reveal that DALI returned another batch."""
    dataset = _read_by_dali(root)
    options = dict(num_workers=1, prefetch_factor=4, device="cpu")
    expected, loader = ExpectedSamples(dataset), ours(dataset, 2, **options)
    list(loader)
    iterator = iter(loader)
    batches = [next(iterator), next(iterator)]
    (pipeline,) = [one for one in loader._route._pipelines if len(one._feed.flight) > 1]
    assert {len(batch.arrays[1]) for batch in pipeline._feed.flight} == {2}
    pipeline._feed.flight.reverse()
    with pytest.raises(RuntimeError, match="different batch than expected; iter"):
        batches.extend(iterator)
    with pytest.raises(RuntimeError, match="an interrupt has stopped this epoch"):
        next(iterator)
    assert sum(map(expected.check, batches), []) == list(expected.images)[: 2 * len(batches)]
    assert sum(map(expected.check, loader), []) == list(expected.images)


@pytest.mark.parametrize("error", [Interrupt, Alarm])
def test_interrupt_at_every_line_of_the_iterator_leaves_loader_correct(root, error):
    """An epoch of two batches, interrupted at every line."""
    dataset = data.Subset(_read_by_dali(root), range(4))
    expected, loader, within = ExpectedSamples(dataset), ours(dataset, 2, device="cpu"), "/iterator.py"
    order = [expected.check(batch) for batch in loader]
    lines = _run_until_interrupt(loader, None, error, within)[2].passed
    assert lines > 50
    for at in range(lines):
        batches, iterator, places = _run_until_interrupt(loader, at, error, within)
        received = [expected.check(batch) for batch in batches]
        rest = _remaining_batches(iterator, error) if iterator is not None else None
        if rest is not None:
            received += [expected.check(batch) for batch in rest]
            assert _lacks_at_most_one(received, order), (places.where, received)
        elif error is Interrupt:
            assert received == order[: len(received)], (places.where, received)
        assert [expected.check(batch) for batch in loader] == order, places.where

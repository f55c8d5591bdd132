"""Epochs: abandoned, repeated, at once, in threads and after fork; what a seed fixes; what is freed, and when."""

import copy
import multiprocessing
import threading
import weakref

import pytest
import torch
from contract.both import EXACT, RANDOM, assert_same_pixels, error_of, no_gc, ours, outlines, pixels, python, said, stock
from torch.utils import data
from torchvision import transforms as T

from dali_compat import DALIImageFolder, DataLoader


def _indices(loader) -> list[int]:
    return [index for batch in loader for index in batch[-1].tolist()]


# ---- epochs


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_abandoned_epoch_leaves_no_trace(exact_folder, num_workers, taken, persistent):
    if persistent and not num_workers:
        pytest.skip("torch refuses it")
    loader = ours(exact_folder, 5, num_workers=num_workers, persistent_workers=persistent, device="cpu")
    for _ in range(3):
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
    del iterator
    assert_same_pixels(pixels(loader), pixels(stock(exact_folder, 5)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_order_after_an_abandoned_epoch_is_torchs(folder, num_workers):
    runs = []
    for make in (ours, stock):
        loader = make(folder, 5, shuffle=True, num_workers=num_workers)
        torch.manual_seed(1)
        next(iter(loader))
        runs.append([_indices(loader), _indices(loader)])
    assert runs[0] == runs[1]


def test_two_iterators_at_once(exact_folder):
    loader = ours(exact_folder, 3, device="cpu")
    expected = pixels(stock(exact_folder, 3))
    first, second = iter(loader), iter(loader)
    taken = [[next(first), next(first)], []]
    for a, b in zip(first, second):
        taken[0].append(a)
        taken[1].append(b)
    taken[1] += second
    for batches in taken:
        assert_same_pixels([batch[0] for batch in batches], expected)


def test_nested_loops_over_one_loader(exact_folder):
    loader = ours(exact_folder, 8)
    assert [_indices([a]) + _indices([b]) for a in loader for b in loader] == [
        [*range(a, a + 8), *range(b, b + 8)] for a in (0, 8, 16) for b in (0, 8, 16)
    ]


def test_train_and_validation_alternate(exact_folder, image_root):
    train = ours(exact_folder, 5, shuffle=True, device="cpu")
    validation = ours(DALIImageFolder(image_root, EXACT), 7, device="cpu")
    expected = pixels(stock(DALIImageFolder(image_root, EXACT), 7))
    for _ in range(3):
        assert sorted(_indices(train)) == list(range(24))
        assert_same_pixels(pixels(validation), expected)


def test_the_end_is_the_end(folder):
    iterator = iter(ours(folder, 20))
    assert len(list(iterator)) == 2
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)
    assert list(iterator) == []


def test_an_iterator_is_torchs(folder):
    loader = ours(folder, 5)
    iterator = iter(loader)
    assert isinstance(iterator, data.dataloader._BaseDataLoaderIter)
    assert iter(iterator) is iterator and len(iterator) == len(loader) == 5
    assert loader._iterator is None  # Composer's DataSpec looks at it
    mine, theirs = error_of(copy.deepcopy, iterator), error_of(copy.deepcopy, iter(stock(folder, 5)))
    assert type(mine) is type(theirs) is NotImplementedError


def test_persistent_workers_keep_their_iterator(folder):
    loader = ours(folder, 5, num_workers=2, persistent_workers=True)
    first = iter(loader)
    assert iter(loader) is first is loader._iterator


def test_a_loader_may_go_before_its_iterator(exact_folder):
    iterator = iter(ours(exact_folder, 5, device="cpu"))
    assert_same_pixels([batch[0] for batch in iterator], pixels(stock(exact_folder, 5)))


def test_an_endless_sampler(folder):
    class Endless:
        def __iter__(self):
            while True:
                yield from (3, 1, 2)

    iterator = iter(ours(folder, 4, sampler=Endless(), num_workers=2))
    assert [next(iterator)[2].tolist() for _ in range(3)] == [[3, 1, 2, 3], [1, 2, 3, 1], [2, 3, 1, 2]]


def test_close_and_go_on(exact_folder):
    loader = ours(exact_folder, 5, device="cpu")
    expected = pixels(stock(exact_folder, 5))
    assert_same_pixels(pixels(loader), expected)
    loader.close()
    loader.close()
    assert_same_pixels(pixels(loader), expected)
    iterator = iter(loader)
    next(iterator)
    loader.close()  # in the middle of an epoch
    assert_same_pixels([batch[0] for batch in iterator], expected[1:])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad, torch.autograd.set_detect_anomaly])
def test_grad_modes(exact_folder, mode):
    with mode() if mode is not torch.autograd.set_detect_anomaly else mode(True):
        batches = [batch[0] for batch in ours(exact_folder, 5, device="cpu")]
    assert_same_pixels(batches, pixels(stock(exact_folder, 5)))


def test_changing_grad_mode_in_an_epoch(exact_folder):
    iterator = iter(ours(exact_folder, 5, device="cpu"))
    with torch.inference_mode():
        inside = next(iterator)[0]
    outside = next(iterator)[0]
    assert inside.is_inference() and not outside.is_inference()


# ---- what a seed fixes


def _augmented(root, seed=0, **options) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.cat(pixels(ours(DALIImageFolder(root, RANDOM), **options)))


@pytest.mark.parametrize(
    "options",
    [
        dict(batch_size=1),
        dict(batch_size=24),
        dict(batch_size=5, num_workers=1),
        dict(batch_size=5, num_workers=3, prefetch_factor=1),
        dict(batch_size=5, num_workers=2, prefetch_factor=4),
        dict(batch_size=5, num_workers=2, persistent_workers=True),
        dict(batch_sampler=[[0, 1], list(range(2, 20)), [20], [21, 22, 23]]),
    ],
)
def test_one_seed_gives_one_augmentation(image_root, options):
    assert torch.equal(_augmented(image_root, **options), _augmented(image_root, batch_size=5))


@pytest.mark.parametrize("options", [dict(), dict(num_workers=2, persistent_workers=True)])
def test_augmentations_differ_between_epochs_and_repeat_under_one_seed(image_root, options):
    def epochs(seed):
        torch.manual_seed(seed)
        loader = ours(DALIImageFolder(image_root, RANDOM), 6, **options)
        return [torch.cat(pixels(loader)) for _ in range(3)]

    first, again, other = epochs(0), epochs(0), epochs(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    for a, b in [(first[0], first[1]), (first[1], first[2]), (first[0], first[2]), (first[0], other[0])]:
        same = (a == b).flatten(1).all(1)
        assert not same.any()  # of 24 windows none comes twice


def test_a_generator_seeds_augmentations(image_root):
    def run(seed):
        loader = ours(DALIImageFolder(image_root, RANDOM), 6, generator=torch.Generator().manual_seed(seed))
        return torch.cat(pixels(loader))

    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))


def test_samples_of_one_batch_are_drawn_apart(image_root):
    torch.manual_seed(0)
    images = next(iter(ours(DALIImageFolder(image_root, RANDOM), 12, sampler=[5] * 12)))[0]
    assert len({image.cpu().numpy().tobytes() for image in images}) == 12


# ---- threads and processes


def test_in_a_thread(exact_folder):
    loader, results = ours(exact_folder, 5, device="cpu"), []
    thread = threading.Thread(target=lambda: results.append(pixels(loader)))
    thread.start()
    thread.join(60)
    assert_same_pixels(results[0], pixels(stock(exact_folder, 5)))


def test_an_iterator_handed_to_another_thread(exact_folder):
    iterator, results = iter(ours(exact_folder, 5, device="cpu")), []
    results.append(next(iterator)[0])
    thread = threading.Thread(target=lambda: results.extend(batch[0] for batch in iterator))
    thread.start()
    thread.join(60)
    assert_same_pixels(results, pixels(stock(exact_folder, 5)))


def test_several_threads_each_with_an_iterator(exact_folder):
    loader, results = ours(exact_folder, 5, device="cpu"), {}
    threads = [threading.Thread(target=lambda i=i: results.update({i: pixels(loader)})) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expected = pixels(stock(exact_folder, 5))
    for i in range(4):
        assert_same_pixels(results[i], expected)


def _in_child(function, seconds=60):
    """What a forked child makes of ``function``, or its error."""

    def run(pipe):
        try:
            pipe.send(("result", function()))
        except Exception as error:  # noqa: BLE001 - the parent looks at it
            pipe.send((type(error).__name__, str(error)))

    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=run, args=(there,), daemon=True)
    child.start()
    try:
        assert here.poll(seconds), "the child hangs"
        return here.recv()
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize("before", ["new", "iterated", "in an epoch"])
def test_a_forked_child_can_iterate(exact_folder, before):
    """On the CPU. CUDA itself does not survive a fork; there the loader must say so (the next test)."""
    loader = ours(exact_folder, 5, device="cpu")
    iterator = iter(loader)
    if before != "new":
        next(iterator)
    if before == "iterated":
        list(iterator)
    kind, order = _in_child(lambda: _indices(loader))
    assert (kind, order) == ("result", list(range(24)))
    assert len(list(iterator)) == {"new": 5, "iterated": 0, "in an epoch": 4}[before]


def test_an_iterator_of_the_parent_says_so_in_a_forked_child(exact_folder):
    iterator = iter(ours(exact_folder, 5, device="cpu"))
    next(iterator)
    kind, text = _in_child(lambda: next(iterator)[2].tolist())
    assert kind == "RuntimeError" and "parent process" in text
    assert len(list(iterator)) == 4


@pytest.mark.gpu
def test_a_forked_child_gets_an_error_on_a_gpu(exact_folder):
    loader = ours(exact_folder, 5)
    next(iter(loader))
    kind, text = _in_child(lambda: _indices(loader))
    assert kind == "RuntimeError" and "fork" in text


def test_torchs_workers_beside_a_running_epoch(exact_folder):
    """Their processes are forked from one in which DALI's threads run."""
    iterator = iter(ours(exact_folder, 5, device="cpu"))
    next(iterator)
    assert outlines(stock(exact_folder, 5, num_workers=2), epochs=1) == outlines(stock(exact_folder, 5), epochs=1)
    assert len(list(iterator)) == 4


@pytest.mark.parametrize("where", ["new", "mid-epoch", "held", "done"])
def test_a_program_ends_quietly(image_root, where):
    code = """
from dali_compat import DataLoader, DALIImageFolder
from contract.both import RANDOM
loader = DataLoader(DALIImageFolder(sys.argv[1], RANDOM), 4, fallback="error")
iterator = iter(loader)
if sys.argv[2] != "new":
    batch = next(iterator)
if sys.argv[2] == "held":
    sys.modules["keep"] = (loader, iterator, batch)
if sys.argv[2] == "done":
    list(iterator)
print("done")
"""
    result = python(code, str(image_root), where)
    assert said(result) == "done\n" and result.stderr == ""


# ---- what is freed


def _pipelines():
    from dali_compat.engine import pipeline

    return weakref.WeakSet(pipeline._live)


@pytest.mark.parametrize("how", ["epoch", "mid-epoch", "persistent", "two iterators", "bad file", "image too small"])
def test_the_last_reference_frees_pipelines(own_root, how):
    with no_gc():
        before = len(_pipelines())
        transform = EXACT if how != "image too small" else T.Compose([T.RandomCrop(120), T.PILToTensor()])
        dataset = DALIImageFolder(own_root, transform)
        if how == "bad file":
            open(dataset.samples[5][0], "wb").close()
        options = dict(num_workers=1, persistent_workers=True) if how == "persistent" else {}
        loader = DataLoader(dataset, 1, fallback="error", **options)
        iterator = iter(loader)
        other = iter(loader) if how == "two iterators" else None
        failed = 0
        while True:
            try:
                next(iterator)
            except (OSError, ValueError):
                failed += 1
            except StopIteration:
                break
            if how == "two iterators":
                next(other)
            if how == "mid-epoch":
                break
        assert (failed > 0) == (how in ("bad file", "image too small"))
        assert len(_pipelines()) > before
        del iterator, other, loader
        assert len(_pipelines()) == before


def test_close_frees_pipelines_and_threads(exact_folder):
    before, threads = len(_pipelines()), threading.active_count()
    loader = ours(exact_folder, 5)
    list(loader)
    assert len(_pipelines()) > before
    loader.close()
    assert all(pipeline._pipe is None for pipeline in _pipelines() if pipeline.plan in loader._route.plans)
    assert threading.active_count() == threads


def test_epochs_keep_one_pipeline(exact_folder):
    before = len(_pipelines())
    loader = ours(exact_folder, 5)
    for _ in range(4):
        list(loader)
        next(iter(loader))
    assert len(_pipelines()) == before + 1


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["del", "close"])
def test_gpu_memory_comes_back(photos_or_images, how):
    dataset = DALIImageFolder(photos_or_images, T.Compose([T.Resize(400), T.CenterCrop(384), T.ToTensor()]))
    list(ours(dataset, 8))  # what DALI and CUDA keep for good
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, used = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
    for _ in range(3):
        loader = ours(dataset, 8)
        for _ in loader:
            pass
        if how == "close":
            loader.close()
        else:
            del loader
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= used
    # nvJPEG and DALI's pool keep blocks for reuse: what must not happen is growth with every loader
    assert free - torch.cuda.mem_get_info()[0] < 64 << 20


@pytest.mark.gpu
def test_batches_on_a_side_stream(exact_folder):
    """A batch may be used on the stream that was current at next(), without further synchronisation."""
    expected = [batch[0].cpu() for batch in ours(exact_folder, 5)]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(5):
            for batch, wanted in zip(ours(exact_folder, 5), expected, strict=True):
                busy = torch.randn(2000, 2000, device="cuda")
                for _ in range(5):
                    busy = busy @ busy
                assert torch.equal(batch[0].cpu(), wanted)
                del batch

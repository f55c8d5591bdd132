"""Functions without a translation, in worker processes: their results, their errors, and what they cost."""

import gc
import os
import pickle
import platform
import random
import resource
import time

import numpy as np
import pytest
import torch
from torchvision import transforms as T
from torchvision import tv_tensors

import dali_compat.workers as calls
from contract.both import assert_same_pixels, error_of, no_gc, python, said, stock
from dali_compat import DALIArrayDataset, DALIImageFolder, DataLoader
from dali_compat.epoch.dali_batch import DaliBatch
from dali_compat.workers.processes import Answer, Processes, serve
from dali_compat.workers.samples import Pieces, dumps
from dali_compat.workers.shared_memory import Place, SlotStore

TO_TENSOR = T.Compose([T.CenterCrop(40), T.PILToTensor()])


def _loader(root, transform, *args, **options):
    return DataLoader(
        DALIImageFolder(root, transform), *args, fallback="silent", device="cpu", num_workers=2, **options
    )


class _Odd(Exception):
    """As botocore's ClientError: pickle cannot make it again."""

    def __init__(self, what, which):
        super().__init__(f"{what} of {which}")


def _fails_on_the_gray_one(image):
    """The first image of make_folder()."""
    red, green, _ = image.split()
    if red.tobytes() == green.tobytes():
        raise _Odd("trouble", "mine")
    return image.rotate(5)


def test_an_error_that_cannot_be_pickled(image_root):
    """It comes with its text and traceback, as torch's does; the batches after it come all the same."""
    for loader in (
        _loader(image_root, T.Compose([_fails_on_the_gray_one, TO_TENSOR]), 6),
        stock(DALIImageFolder(image_root, T.Compose([_fails_on_the_gray_one, TO_TENSOR])), 6, num_workers=2),
    ):
        for _ in range(2):
            iterator = iter(loader)
            error = error_of(next, iterator)
            assert type(error) is RuntimeError and "Caught _Odd in DataLoader worker process" in str(error)
            assert "trouble of mine" in str(error) and "_fails_on_the_gray_one" in str(error)
            assert [len(batch[1]) for batch in iterator] == [6, 6, 6]


def _bad_init(number):
    raise LookupError(f"no worker {number}")


def test_an_error_of_worker_init_fn(image_root):
    """It is the user's, and says where it comes from."""
    error = error_of(list, _loader(image_root, T.Compose([_rotate, TO_TENSOR]), 6, worker_init_fn=_bad_init))
    assert type(error) is LookupError and "no worker" in str(error) and "_bad_init" in str(error)


def _rotate(image):
    return image.rotate(5)


def _die(image):
    os._exit(1)


def test_a_dead_worker(image_root):
    loader = _loader(image_root, T.Compose([_die, TO_TENSOR]), 6)
    for _ in range(2):
        error = error_of(next, iter(loader))
        assert type(error) is RuntimeError and "worker process exited unexpectedly" in str(error)


class _Views:
    def __call__(self, image):
        return TO_TENSOR(image), TO_TENSOR(image.rotate(90))


class _Both:
    def __call__(self, views):
        return {"views": views, "label": tv_tensors.Image(views[0]), "name": "x"}


def test_many_views_need_few_descriptors(image_root):
    """A pair of views each, to a second function and back: 2 * 240 tensors a batch, two batches ahead."""
    dataset = DALIImageFolder(image_root, T.Compose([_Views(), _Both()]))
    sampler = list(range(24)) * 30
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    loader = DataLoader(dataset, 240, sampler=sampler, fallback="silent", device="cpu", num_workers=2)
    next(iter(loader))  # DALI's pipeline is built
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, before[1]))  # 240 are DALI's
    try:
        mine = [batch[0] for batch in loader]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    theirs = [batch[0] for batch in stock(dataset, 240, sampler=sampler)]
    for i in (0, 1):
        assert_same_pixels([batch["views"][i] for batch in mine], [batch["views"][i] for batch in theirs])
    assert_same_pixels([batch["label"] for batch in mine], [batch["label"] for batch in theirs])


VALUES = [
    torch.arange(7, dtype=torch.uint8),
    torch.tensor(2.5, dtype=torch.float64),
    torch.empty(0, 3),
    torch.tensor([True, False, True]),
    torch.arange(12.0).reshape(3, 4).t(),
    torch.ones(4, dtype=torch.complex64),
    tv_tensors.Image(torch.arange(12, dtype=torch.uint8).reshape(3, 2, 2)),
    tv_tensors.BoundingBoxes(torch.ones(1, 4), format="XYXY", canvas_size=(9, 9)),
    torch.ones(2, requires_grad=True),
    torch.eye(3).to_sparse(),
]


def test_a_parcel_gives_what_went_in():
    same = torch.ones(2)
    made = Pieces([VALUES, {"same": same, "other": (same, "text", None)}]).parcel().unpack()
    for value, one in zip(VALUES, made[0], strict=True):
        assert type(one) is type(value) and one.dtype == value.dtype and one.requires_grad == value.requires_grad
        assert one.shape == value.shape and torch.equal(one.to_dense(), value.to_dense())
    assert made[1]["same"] is made[1]["other"][0] and made[1]["other"][1:] == ("text", None)
    assert Pieces(["no tensors"]).parcel().unpack() == ["no tensors"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("rows", [1, 2])
def test_views_of_one_element_or_none(dtype, rows):
    """torch calls them contiguous whatever their strides are."""
    table = torch.arange(5 * rows).reshape(rows, 5).to(dtype)
    views = [table[:, 4], table[:0, 4], table.diagonal()[:1], table.t()[:1], table[None, :, None, 2], table[0, 3]]
    for view, made in zip(views, Pieces(views).parcel().unpack(), strict=True):
        assert made.dtype == view.dtype and made.shape == view.shape and torch.equal(made, view)


def test_a_view_travels_without_what_it_is_a_view_of():
    whole = torch.arange(10**6)
    text = dumps({"view": whole[5:8]})
    assert len(text) < whole.nbytes // 100 and pickle.loads(text)["view"].tolist() == [5, 6, 7]


def test_a_result_that_cannot_be_pickled(image_root):
    loader = _loader(image_root, lambda image: lambda: image, 6, collate_fn=list)
    for _ in range(2):
        assert "lambda" in str(error_of(next, iter(loader)))


# ---- shared memory


def _memfds() -> int:
    """How many mappings of ours this process has."""
    with open("/proc/self/maps") as maps:
        return maps.read().count("memfd:dali_compat")


class _Odds:
    """Sizes of its own for every image, and ever larger ones."""

    def __call__(self, image):
        side = 8 + image.getpixel((3, 3))[0] % 32
        return image.resize((side, 40 + side))


ODD = T.Compose([T.CenterCrop(48), _Odds(), T.PILToTensor()])
ROTATED = T.Compose([T.CenterCrop(41), _rotate, T.PILToTensor()])
TENSORS = T.Compose([T.CenterCrop(41), T.ToTensor(), torch.neg, T.Normalize(0.5, 0.25)])
RAGGED = T.Compose([_rotate, T.CenterCrop(40), T.PILToTensor()])
BFLOATS = T.Compose([T.CenterCrop(41), T.PILToTensor(), T.ConvertImageDtype(torch.bfloat16), torch.neg])


@pytest.mark.alike
@pytest.mark.parametrize(
    ("transform", "context"), [*((t, "fork") for t in (ROTATED, TENSORS, RAGGED, ODD, BFLOATS)), (ROTATED, "spawn")]
)
def test_batches_in_shared_memory(image_root, transform, context):
    """Batches that are kept stay what they were; DALI's to_dtype and normalisation are within 1e-6."""
    dataset = DALIImageFolder(image_root, transform)
    sampler = list(range(24)) * 3
    options = dict(batch_size=7, sampler=sampler, collate_fn=list if transform is ODD else None)
    loader = _loader(image_root, transform, multiprocessing_context=context, **options)
    mine, theirs = [*loader, *(loader if context == "fork" else ())], [*stock(dataset, **options)]
    for a, b in zip(mine, theirs * (2 if context == "fork" else 1), strict=True):
        both = ([image for image, _ in batch] if transform is ODD else batch[0] for batch in (a, b))
        for x, y in zip(*both, strict=True):
            assert x.dtype == y.dtype
            torch.testing.assert_close(x, y, rtol=0, atol=2e-6 if transform is TENSORS else 0)


def test_uniform_batches_travel_in_shared_memory(image_root, monkeypatch):
    """All images that go; and of the results all but those of the batches that are on their way before one is back."""
    by_message, sent = [], []
    pack, parts = calls.pack, calls.Called._parts
    monkeypatch.setattr(calls, "pack", lambda *args: sent.append(pack(*args)) or sent[-1])

    def counted(self):
        made = parts(self)
        by_message.append(sum(not isinstance(part.values, Place) for part in made))
        return made

    monkeypatch.setattr(calls.Called, "_parts", counted)
    loader = _loader(image_root, ROTATED, 8, sampler=list(range(24)) * 2)
    list(loader)
    assert by_message == [4, 4, 0, 0, 0, 0]
    by_message.clear()
    list(loader)
    assert by_message == [0] * 6
    assert len(sent) == 12 and all(isinstance(part.values, Place) for part in sent)


class _Keeps:
    """Fails where what it was given before is another now."""

    def __init__(self):
        self.kept = []

    def __call__(self, image):
        assert all(torch.equal(one, copy) for one, copy in self.kept)
        self.kept.append((image, image.clone()))
        return image


def test_what_a_function_keeps(image_root):
    transform = T.Compose([T.CenterCrop(41), T.PILToTensor(), _Keeps()])
    assert len(list(_loader(image_root, transform, 4, sampler=list(range(24)) * 3))) == 18


class _Slow:
    """Fails on one image, at once, and takes its time for another."""

    def __init__(self, bad, slow):
        self.bad, self.slow = bad.getpixel((20, 20)), slow.getpixel((20, 20))

    def __call__(self, image):
        if image.getpixel((20, 20)) == self.bad:
            raise ValueError("bad one")
        time.sleep(0.3 * (image.getpixel((20, 20)) == self.slow))
        return image.rotate(5)


def test_what_is_late_hurts_nobody(image_root):
    """A batch has failed, or its iterator was left, and a process has still to write a part of it."""
    crop, images = T.CenterCrop(41), DALIImageFolder(image_root)
    slow = _Slow(crop(images[1][0]), crop(images[2][0]))
    wanted = [batch[0] for batch in stock(DALIImageFolder(image_root, ROTATED), 4)]
    loader = _loader(image_root, T.Compose([crop, slow, T.PILToTensor()]), 4)
    for _ in range(3):
        iterator = iter(loader)
        assert "bad one" in str(error_of(next, iterator))
        assert torch.equal(next(iterator)[0], wanted[1])
        time.sleep(0.5)  # the third batch is ready, in the memory that the first one had
        assert_same_pixels([batch[0] for batch in iterator], wanted[2:])
        iterator = iter(loader)
        assert "bad one" in str(error_of(next, iterator))
        del iterator


def test_shared_memory_comes_back(image_root):
    def descriptors(expected=0):
        """The fewest within a second, or once there are as few as expected: a pool's thread closes its processes' pipes
        when the last of them has ended, and nobody waits for that."""
        found, end = [], time.monotonic() + (60 if expected else 1)
        while not found or (min(found) > expected and time.monotonic() < end):
            gc.collect()
            found.append(len(os.listdir("/proc/self/fd")))
            time.sleep(0.01)
        return min(found)

    list(_loader(image_root, ROTATED, 6))  # what DALI and multiprocessing keep for good
    before = descriptors()
    assert _memfds() == 0
    loader = _loader(image_root, ROTATED, 6)
    for _ in range(3):
        list(loader)
        next(iter(loader))
        assert 1 <= _memfds() <= 2  # as many as batches in flight
    loader.close()
    assert _memfds() == 0 and descriptors(before) <= before
    list(loader)
    del loader
    assert _memfds() == 0 and descriptors(before) <= before


CPU = torch.device("cpu")


def files(slots) -> set[int]:
    """Inodes: the system may give a descriptor of a closed file to the next one."""
    return {os.fstat(slot._fd).st_ino for slot in slots}


def test_a_forked_child_takes_no_slot_of_its_parent():
    """They would write into each other's batches."""
    store = SlotStore()
    mine = store.take(2, CPU)
    before = files(mine)
    for slot in mine:
        store.give_back(slot)
    child = os.fork()
    if not child:
        try:
            taken = store.take(2, CPU)
            os._exit(int(len(taken) != 2 or bool(files(taken) & before)))
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert files(store.take(2, CPU)) == before


def test_a_slot_is_somebodys_alone():
    store = SlotStore()
    mine, yours = store.take(2, CPU), store.take(2, CPU)
    before = files([*mine, *yours])
    assert len(before) == 4
    back = files(mine[:1])
    store.give_back(mine[0])
    again = store.take(2, CPU)
    assert files(again[:1]) == back and not files(again[1:]) & before
    store.give_back(mine[0])
    assert not files(store.take(2, CPU)) & back


class _Taker:
    """Garbage whose ``__del__`` the collector calls before that of its slots, which are made later."""

    def __init__(self, store):
        self.store, self.itself = store, self
        self.slots = store.take(2, CPU)

    def __del__(self):
        for slot in self.slots:
            self.store.give_back(slot)


def test_slots_that_garbage_gives_back_keep_their_memory():
    store = SlotStore()
    with no_gc():
        before = files(_Taker(store).slots)
        gc.collect()
    assert files(store.take(2, CPU)) == before


def test_an_iterator_that_ends_as_garbage(image_root):
    """It gives back its shared memory, which must not have ended with it: another file had its descriptor then."""
    loader = _loader(image_root, ROTATED, 6)
    wanted = [batch[0] for batch in stock(DALIImageFolder(image_root, ROTATED), 6)]
    for _ in range(3):
        cycle = [iter(loader)]
        assert_same_pixels([batch[0] for batch in cycle[0]], wanted)
        cycle[0] = iter(loader)
        next(cycle[0])
        cycle.append(cycle)
        del cycle
        gc.collect()
        (store,) = [calls._stores[plan.call] for plan in loader._route.plans]
        for slot in store._free:
            assert os.readlink(f"/proc/self/fd/{slot._fd}").startswith("/memfd:dali_compat")
        time.sleep(0.1)


def test_without_shared_memory(image_root, monkeypatch):
    """Where the system has none to give, all goes by message."""

    def none(*args):
        raise OSError("no descriptors")

    monkeypatch.setattr(os, "memfd_create", none)
    wanted = stock(DALIImageFolder(image_root, ROTATED), 6)
    assert_same_pixels([b[0] for b in _loader(image_root, ROTATED, 6)], [b[0] for b in wanted])


class _WritesItsSeed:
    """A worker_init_fn."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, number):
        info = torch.utils.data.get_worker_info()
        new = self.folder / f"{number}.new"
        new.write_text(f"{info.seed} {info.id} {info.num_workers}")
        new.rename(self.folder / f"part.{number}")


def test_worker_info(image_root, tmp_path):
    """A seed of each worker's own, as torch gives them: workers that seed their libraries with it must differ."""
    loader = _loader(image_root, ROTATED, 6, worker_init_fn=_WritesItsSeed(tmp_path), persistent_workers=True)
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("part.*"))) < 2 and time.monotonic() < until:  # one may be there before the other
        list(loader)
    loader.close()
    first, second = ([int(word) for word in (tmp_path / f"part.{n}").read_text().split()] for n in (0, 1))
    assert second[0] == first[0] + 1 and (first[1:], second[1:]) == ([0, 2], [1, 2])


def _draws(image):
    return image.rotate(random.random() + np.random.rand() + torch.rand(()).item())


def test_a_function_in_this_process_leaves_its_generators_alone(image_root):
    """As it does where torch runs it in workers. torch's own has moved on by the epoch's seed, as with any loader."""
    loader = DataLoader(DALIImageFolder(image_root, T.Compose([_draws, TO_TENSOR])), 6, fallback="silent", device="cpu")
    other = DataLoader(DALIImageFolder(image_root, TO_TENSOR), 6, fallback="silent", device="cpu")
    after = []
    for each in (loader, other):
        torch.manual_seed(1), random.seed(2), np.random.seed(3)
        list(each)
        after.append((torch.rand(()).item(), random.random(), np.random.rand()))
    assert after[0] == after[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_memory_format_behind_a_function(image_root, workers):
    dataset = DALIImageFolder(image_root, ROTATED)
    options = dict(fallback="silent", device="cpu", num_workers=workers)
    for images, _ in DataLoader(dataset, 6, memory_format=torch.channels_last, **options):
        assert images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()


def test_dali_works_ahead_of_the_processes(image_root, monkeypatch):
    """It begins with batches 3 and 4 before the first one is waited for, and with as many as it has in flight only
    when there is no process."""
    order = []
    start, images = DaliBatch.start, calls.Called.images
    monkeypatch.setattr(DaliBatch, "start", lambda self: (order.append(self.begin), start(self))[1])
    monkeypatch.setattr(calls.Called, "images", lambda *args: (order.append("wait"), images(*args))[1])
    for workers, begun in ((2, {0, 3, 6, 9}), (0, {0, 3})):
        order.clear()
        dataset = DALIImageFolder(image_root, ROTATED)
        next(iter(DataLoader(dataset, 3, fallback="silent", device="cpu", num_workers=workers)))
        assert set(order[: order.index("wait")]) == begun


# ---- several views


def _stack(crops):
    return torch.stack([T.functional.pil_to_tensor(crop) for crop in crops])


def _second(crops):
    return crops[1]


def _numbers(image):
    return torch.tensor(image.getpixel((3, 3)), dtype=torch.float64)


def _some(image):
    return torch.ones(2 if image.getpixel((3, 3))[0] % 2 else 3)


@pytest.mark.parametrize("functions", [[_numbers], [T.FiveCrop(20), _stack], [T.TenCrop(24), _stack]])
@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_that_are_no_images(image_root, functions, workers):
    """They are stacked; a collate_fn gets them as samples."""
    dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), *functions]))
    options = dict(sampler=list(range(24)) * 2, num_workers=workers)
    mine = DataLoader(dataset, 6, fallback="silent", device="cpu", **options)
    assert_same_pixels([b[0] for b in mine], [b[0] for b in stock(dataset, 6, **options)])
    mine.collate_fn = list
    for a, b in zip(mine, stock(dataset, 6, collate_fn=list, **options), strict=True):
        assert_same_pixels([image for image, _ in a], [image for image, _ in b])


def _of_some_dtype(image):
    return torch.ones(2, dtype=torch.int64 if image.getpixel((3, 3))[0] % 2 else torch.float16)


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_of_several_dtypes(image_root, workers):
    dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), _of_some_dtype]))
    options = dict(num_workers=workers, collate_fn=list)
    (mine,), (theirs,) = (
        list(make(dataset, 24, **options))
        for make in (lambda *a, **o: DataLoader(*a, fallback="silent", device="cpu", **o), stock)
    )
    assert [image.dtype for image, _ in mine] == [image.dtype for image, _ in theirs]
    assert len({image.dtype for image, _ in mine}) == 2


def test_tensors_that_cannot_be_stacked(image_root):
    mine, theirs = (
        error_of(list, make(DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), _some])), 12, num_workers=2))
        for make in (lambda *a, **o: DataLoader(*a, fallback="silent", device="cpu", **o), stock)
    )
    assert type(mine) is type(theirs) is RuntimeError and "stack expects each tensor to be equal size" in str(mine)


@pytest.mark.parametrize("crops", [T.FiveCrop(24), T.TenCrop(24, vertical_flip=True)])
def test_crops_are_made_where_the_function_runs(image_root, crops):
    for last in ([_stack], [_second, T.PILToTensor()]):
        dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(40), crops, *last]))
        loader = _loader(image_root, dataset.transform, 6)
        assert_same_pixels([b[0] for b in loader], [b[0] for b in stock(dataset, 6)])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_worker_keeps_the_memory_that_it_frees():
    """14,700 pages, which the system would have to clear for every image; in a process of its own, for what a forked
    one inherits may have room for them."""
    code = """
import resource
import torch
from dali_compat.workers.worker import begin

def page_faults():  # of a hundred tensors that live together
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(3, 224, 224) for _ in range(100)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
before = [page_faults() for _ in range(20)]
begin(0, 1, 1, None, None)
print(*sorted(before), *sorted(page_faults() for _ in range(20)))
"""
    faults = [int(number) for number in said(python(code)).split()]
    assert faults[30] < 100, faults
    if faults[10] <= 1000:
        pytest.skip("this system's allocator keeps memory of itself")


class _Draws:
    """Notes what it has drawn."""

    def __init__(self, drawn):
        self.drawn = drawn

    def __call__(self, image):
        self.drawn.append((torch.rand(()).item(), random.random(), np.random.rand()))
        return image


@pytest.mark.parametrize(
    "between", [T.RandomHorizontalFlip(), T.Compose([])], ids=["a random transform", "nothing to do"]
)
def test_two_functions_draw_other_numbers_of_one_sample(image_root, between):
    """And so do target_transform and collate_fn: with equal ones, two coins would always fall alike."""
    functions, target, collate = [_Draws([]) for _ in range(2)], _Draws([]), _Draws([])

    def collated(samples):
        return collate(torch.utils.data.default_collate(samples))

    transform = T.Compose([functions[0], between, functions[1], TO_TENSOR])
    dataset = DALIImageFolder(image_root, transform, target_transform=target)
    list(DataLoader(dataset, 1, collate_fn=collated, fallback="silent", device="cpu"))
    all_drawn = [one.drawn for one in (*functions, target, collate)]
    assert [len(drawn) for drawn in all_drawn] == [len(dataset)] * 4
    for numbers in zip(*(sum(drawn, ()) for drawn in all_drawn), strict=True):
        assert len(set(numbers)) == 4


class _Strength:
    """A transform that a training loop makes stronger."""

    value = called = 0

    def __call__(self, image):
        self.called += 1
        return T.functional.pil_to_tensor(image) * 0 + self.value


@pytest.mark.parametrize("make", [stock, lambda *args: DataLoader(*args, fallback="silent", device="cpu")])
@pytest.mark.parametrize("arrays", [False, True], ids=["files", "arrays"])
def test_without_workers_a_function_sees_what_the_loop_has_changed(image_root, make, arrays):
    """It is called when its batch is asked for, and not before."""
    strength = _Strength()
    transform = T.Compose([T.CenterCrop(20), strength])
    pictures = np.zeros((24, 30, 30, 3), np.uint8)
    dataset = DALIArrayDataset(pictures, range(24), transform) if arrays else DALIImageFolder(image_root, transform)
    seen = []
    for images, _ in make(dataset, 6):
        seen.append((strength.called, images.unique().tolist()))
        strength.value += 1
    assert seen == [(6, [0]), (12, [1]), (18, [2]), (24, [3])]


def _many(connection, tasks, number):
    serve(connection, tasks, lambda message: dumps(_made(*pickle.loads(message))))


def _made(count, shared):
    if not shared:
        del os.memfd_create  # as of a Python that was built without it
    return {"tensor": torch.arange(count), "array": np.arange(count)[::-1], "text": str(count)}


@pytest.mark.parametrize("shared", [True, False])
def test_large_answers(shared):
    """Of tensors and arrays, in a file without a name where the system has any; none stays open."""
    processes = Processes(torch.multiprocessing.get_context("fork"), [0], _many, ())
    before = len(os.listdir("/proc/self/fd"))
    try:
        for count in (0, 1 << 10, (1 << 20) // 8 - 50, (1 << 20) // 8, 1 << 19) if shared else [1 << 19]:
            answer = Answer()
            processes.ask([pickle.dumps((count, shared))], [answer])
            processes.wait(answer)
            made = pickle.loads(answer.message)
            made["tensor"] += 1  # they are the caller's own
            made["array"] += 1
            assert torch.equal(made["tensor"], torch.arange(count) + 1) and made["text"] == str(count)
            assert np.array_equal(made["array"], np.arange(count)[::-1] + 1)
            assert (len(answer.message) > 1 << 17) == (count > 1 << 13)
        del answer
        assert len(os.listdir("/proc/self/fd")) <= before
    finally:
        processes.close()

"""Resuming from a state gives the same batches, random numbers and generator states as without an interruption."""

import copy
import io
import json
import os
import random
import time
import warnings
import zlib

import numpy as np
import pytest
import torch
from helpers import calls_of, make_folder
from PIL import Image
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms as T
from torchvision.datasets import FakeData

from contract.both import RANDOM, Wrapped
from contract.orders import CASES, Yields
from contract.storages import stored
from dali_compat import DALIArrayDataset, DALIImageFolder, DALIImageList, DataLoader, merge_states

COUNT, BATCH, EPOCHS = 24, 5, 2
AUGMENTED = T.Compose([T.RandomCrop(16, padding=2), T.RandomHorizontalFlip(), T.ToTensor()])


def arrays():
    """24 random images, whose labels are their indices."""
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 16, 16, 3), dtype=np.uint8)
    return DALIArrayDataset(pixels, list(range(COUNT)), AUGMENTED)


class Noise(data.Dataset):
    """Random numbers from all generators; torch's loader reads them, because there are no images."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.rand(2) + index, np.random.rand() + random.random()


def add_noise(image):
    return image + torch.rand(())


def noisy_collate(samples):
    images, labels = zip(*[sample[:2] for sample in samples], strict=True)
    return torch.stack(images) + torch.rand(()), torch.tensor(labels) + random.random()


def loader(dataset, seed=0, **options) -> DataLoader:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    return DataLoader(dataset, device="cpu", **{"fallback": "silent", "batch_size": BATCH} | options)


def fingerprint(batch):
    """Return the contents of a batch, for comparison."""
    if isinstance(batch, torch.Tensor):
        return tuple(batch.shape), zlib.crc32(batch.numpy().tobytes())
    return [fingerprint(part) for part in batch] if isinstance(batch, (list, tuple)) else batch


def save_and_load(state):
    """Return the state after torch.save() and torch.load(weights_only=True)."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def epochs(one, count=EPOCHS, states=None, draws=3) -> list[list]:
    """Return the batches of each epoch, with steps that draw.

    Append the state before and after each step to ``states``, with the number of epochs and batches before it.
    """
    made: list[list] = []
    for _ in range(count):
        made.append([])
        if states is not None:
            states.append((len(made) - 1, 0, one.state_dict()))
        for batch in one:
            made[-1].append(fingerprint(batch))
            torch.rand(draws)
            if states is not None:
                states.append((len(made) - 1, len(made[-1]), one.state_dict()))
    return made


def generator_states(one) -> list:
    """Return the states of the generators that the loader draws from."""
    own = [g for g in (one.generator, getattr(one.sampler, "generator", None)) if g]
    found = [g.get_state() for g in own] if one.generator else [torch.get_rng_state(), *(g.get_state() for g in own)]
    return [zlib.crc32(state.numpy().tobytes()) for state in found]


def assert_resumes(make, picked, draws=3) -> None:
    """Resume from states before an epoch, within it and at its end."""
    first, states = make(), []
    whole = epochs(first, states=states, draws=draws)
    last = generator_states(first)
    for epoch, batch, state in [states[number] for number in picked if number < len(states)]:
        other = make(seed=7)
        other.load_state_dict(save_and_load(state))
        rest = epochs(other, EPOCHS - epoch, draws=draws)
        assert rest == [whole[epoch][batch:], *whole[epoch + 1 :]], (epoch, batch)
        assert generator_states(other) == last


# ---- every sampler


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_resuming_is_exact_for_each_sampler(case, num_workers):
    def make(seed=0):
        dataset = arrays()
        return loader(dataset, seed, num_workers=num_workers, **{"batch_size": 1} | _options(CASES[case](dataset)))

    assert_resumes(make, (0, 1, 3, -2, -1), draws=0 if case == "draws in the sampler" else 3)


def _options(options: dict) -> dict:
    return options | {"batch_size": 1} if "batch_sampler" in options else options


class DrawingSampler(data.Sampler):
    """A custom sampler that draws from Python and NumPy, in iter() or lazily, and counts epochs."""

    def __init__(self, eagerly):
        self.eagerly, self.epoch, self.own = eagerly, 0, np.random.default_rng(3)

    def __iter__(self):
        self.epoch += 1
        return iter(list(self._draw())) if self.eagerly else self._draw()

    def _draw(self):
        yield from random.sample(range(COUNT), 8)
        yield from np.random.permutation(8).tolist()
        yield from ((self.own.permutation(8) + self.epoch) % COUNT).tolist()

    def __len__(self):
        return COUNT


@pytest.mark.parametrize("eagerly", [False, True])
@pytest.mark.parametrize("batch_size", [BATCH, None])
def test_resuming_is_exact_for_a_sampler_that_draws_from_python_and_numpy(eagerly, batch_size):
    assert_resumes(
        lambda seed=0: loader(arrays(), seed, sampler=DrawingSampler(eagerly), batch_size=batch_size), (0, 1, 3, 9)
    )


class StatefulSampler(data.Sampler):
    """A custom sampler with state_dict()."""

    def __init__(self):
        self.at, self.rounds = 0, 0

    def __iter__(self):
        while self.at < COUNT:
            self.at += 1
            yield (self.at * 7 + self.rounds) % COUNT
        self.at, self.rounds = 0, self.rounds + 1

    def __len__(self):
        return COUNT

    def state_dict(self):
        return {"at": self.at, "rounds": self.rounds}

    def load_state_dict(self, state):
        self.at, self.rounds = state["at"], state["rounds"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_is_exact_for_a_sampler_with_state_dict(num_workers):
    assert_resumes(
        lambda seed=0: loader(arrays(), seed, sampler=StatefulSampler(), num_workers=num_workers), (0, 1, 3, 5, 6, 7)
    )


def test_epoch_restarts_with_a_warning_if_the_sampler_shares_its_generator():
    one = loader(arrays(), sampler=Yields(lambda: (random.randrange(COUNT) for _ in range(COUNT)), COUNT))
    iterator = iter(one)
    next(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.state_dict()
    random.random()
    next(iterator), next(iterator)
    with pytest.warns(UserWarning, match=r"not be exact: the sampler draws each batch.*python.*will restart"):
        state = one.state_dict()
    one.load_state_dict(state)
    assert len(list(one)) == 5


@pytest.mark.parametrize("dataset", [arrays, Noise])
def test_epoch_restarts_with_a_warning_if_the_sampler_has_a_hidden_state(dataset):
    hidden = random.Random(0)

    def make():
        return loader(dataset(), sampler=Yields(lambda: hidden.sample(range(COUNT), COUNT), COUNT))

    one = make()
    next(iter(one))
    state, other = one.state_dict(), make()
    other.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"does not return the same indices.*the epoch restarts"):
        assert len(list(other)) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(other)) == 5


# ---- routes


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("resume"), low=40, high=60)


ROUTES = {
    "folder": lambda images: (DALIImageFolder(images, RANDOM), {}),
    "call": lambda images: (DALIImageFolder(images, T.Compose([RANDOM, T.Lambda(add_noise)])), {}),
    "collate_fn": lambda images: (DALIImageFolder(images, RANDOM), {"collate_fn": noisy_collate}),
    "resident": lambda images: (arrays(), {}),
    "fallback": lambda images: (Noise(), {}),
}


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 1)])
def test_sample_by_sample_loading_with_or_without_workers_warns_of_other_random_numbers(images, before, after):
    def make(workers):
        transform = T.Compose([lambda image: image.rotate(90), RANDOM])
        return loader(DALIImageFolder(images, transform), shuffle=True, num_workers=workers)

    one, other = make(before), make(after)
    next(iter(one))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other.load_state_dict(one.state_dict())
    expected = "random numbers will differ: route: was DALI, with"
    assert any(expected in str(one.message) for one in caught) == (0 in (before, after))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("route", ROUTES)
def test_resuming_is_exact_on_each_route(images, route, num_workers):
    dataset, options = ROUTES[route](images)
    assert_resumes(
        lambda seed=0: loader(dataset, seed, shuffle=True, num_workers=num_workers, **options), (1, 3, 6, -2)
    )


@pytest.mark.parametrize("storage", ["rec", "tar"])
def test_resuming_is_exact_for_archives(images, storage, tmp_path):
    dataset = stored(images, storage, tmp_path)(RANDOM)
    assert_resumes(lambda seed=0: loader(dataset, seed, shuffle=True), (3, 6))


@pytest.mark.parametrize("route", ["folder", "resident"])
def test_resuming_is_exact_with_persistent_workers(images, route):
    def make(seed=0):
        return loader(ROUTES[route](images)[0], seed, shuffle=True, num_workers=2, persistent_workers=True)

    assert_resumes(make, (0, 2, 5, 6, 8))


@pytest.mark.parametrize("before", [True, False])
def test_changing_persistent_workers_warns_when_a_state_is_loaded(before):
    def make(persistent):
        return loader(arrays(), shuffle=True, num_workers=2, persistent_workers=persistent)

    one = make(before)
    whole = epochs(one, 1, states := [])[0]
    _, received, state = states[2]
    other = make(not before)
    with pytest.warns(UserWarning, match="exact only until the end of the state's epoch, because persistent_workers"):
        other.load_state_dict(state)
    assert epochs(other, 1)[0] == whole[received:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(before).load_state_dict(state)
        make(not before).load_state_dict(states[0][2])  # no epoch had begun


def test_state_with_torchs_persistent_workers_warns():
    one = loader(Noise(), num_workers=1, persistent_workers=True)
    for _ in range(2):
        for _ in one:
            pass
        with pytest.warns(UserWarning, match="persistent workers continue"):
            one.state_dict()


@pytest.mark.filterwarnings("ignore")
def test_order_is_resumed_with_torchs_persistent_workers():
    assert_resumes(
        lambda seed=0: loader(Indices(), seed, shuffle=True, num_workers=2, persistent_workers=True), (1, 5, 6, 8, -1)
    )


def test_snapshot_every_n_steps_is_accepted():
    assert loader(arrays(), snapshot_every_n_steps=5).snapshot_every_n_steps == 5


def test_resuming_is_exact_for_an_iterable_data_set():
    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(torch.rand(COUNT))

    assert_resumes(lambda seed=0: loader(Stream(), seed), (1, 3, 6))


class Stream(data.IterableDataset):
    """An iterable data set with state_dict(), of three kinds.

    The state of "epochs" counts only epochs, "whole" continues from its position in the epoch, and "resumes" does so
    only in the first iteration after load_state_dict().
    """

    def __init__(self, kind):
        self.kind, self.at, self.epoch, self.resume = kind, 0, -(kind == "resumes"), None

    def _order(self):
        order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(self.epoch + 1)).tolist()
        info = data.get_worker_info()
        return order if info is None else order[info.id :: info.num_workers]

    def __iter__(self):
        if self.kind == "epochs":
            self.epoch += 1
            return iter(self._order())
        return self._resumed() if self.kind == "resumes" else self._whole()

    def _whole(self):
        order = self._order()
        while self.at < len(order):
            self.at += 1
            yield order[self.at - 1]
        self.at, self.epoch = 0, self.epoch + 1

    def _resumed(self):
        self.epoch += self.resume is None
        self.at, self.resume = self.resume or 0, None
        for one in self._order()[self.at :]:
            self.at += 1
            yield one

    def state_dict(self):
        return {"epoch": self.epoch} if self.kind == "epochs" else {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state):
        self.epoch, self.at = state["epoch"], state.get("at", 0)
        self.resume = self.at if self.kind == "resumes" else None


class CountsSamples(Noise):
    """A data set whose samples contain the number of samples read so far."""

    made = 0

    def __getitem__(self, index):
        self.made += 1
        return index, self.made, torch.rand(())

    def state_dict(self):
        return {"made": self.made}

    def load_state_dict(self, state):
        self.made = state["made"]


@pytest.mark.alike
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["epochs", "whole", "resumes", "map"])
def test_resuming_is_exact_for_a_data_set_with_state_dict(kind, num_workers):
    """The methods follow torchdata's protocol."""
    make = CountsSamples if kind == "map" else lambda: Stream(kind)
    places = (1, 6, 8) if num_workers else (0, 1, 2, 5, 6, 7, 8, 10, 12)
    assert_resumes(lambda seed=0: loader(make(), seed, num_workers=num_workers), places)


def test_resuming_is_exact_for_a_hugging_face_stream_with_a_shuffle_buffer():
    """The stream's state_dict() does not include its shuffle buffer."""
    table = pytest.importorskip("datasets").Dataset.from_dict({"a": list(range(COUNT))})

    def make():
        return loader(table.to_iterable_dataset(num_shards=3).shuffle(seed=1, buffer_size=5))

    def values(one, count):
        return [[batch["a"].tolist() for batch in one] for _ in range(count)]

    whole, one = values(make(), 3), make()
    for epoch in range(2):
        for number, _ in enumerate(one, 1):
            if number == 2:
                within = one.state_dict()
        other, third = make(), make()
        other.load_state_dict(within)
        assert values(other, 3 - epoch) == [whole[epoch][2:], *whole[epoch + 1 :]]
        third.load_state_dict(one.state_dict())
        assert values(third, 2 - epoch) == whole[epoch + 1 :]


class OwnIterator(data.IterableDataset):
    """An iterable data set that is its own iterator; its state exists after the first iter()."""

    iterated = 0

    def __iter__(self):
        self.iterated += 1
        self.place = {"at": 0}
        return self

    def __next__(self):
        if self.place["at"] == COUNT:
            raise StopIteration
        self.place["at"] += 1
        return self.place["at"]

    def state_dict(self):
        return {"at": self.place["at"], "iterated": self.iterated}

    def load_state_dict(self, state):
        self.place["at"], self.iterated = state["at"], state["iterated"]


@pytest.mark.alike
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("same", [False, True], ids=["a new one", "the same one"])
@pytest.mark.parametrize("batches", range(1, 6))
def test_resuming_is_exact_for_a_data_set_that_is_its_own_iterator(batches, same, num_workers):
    dataset = OwnIterator()
    one = loader(dataset, num_workers=num_workers)
    whole = [batch.tolist() for batch in loader(OwnIterator(), num_workers=num_workers)]
    iterator = iter(one)
    for _ in range(batches):
        next(iterator)
    other = loader(dataset if same else OwnIterator(), num_workers=num_workers)
    other.load_state_dict(save_and_load(one.state_dict()))
    assert [batch.tolist() for batch in other] == whole[batches:]
    assert [batch.tolist() for batch in other] == whole


@pytest.mark.parametrize("num_workers", [0, 2])
def test_data_set_that_is_its_own_iterator_restarts_after_a_whole_epoch(num_workers):
    one, other = loader(OwnIterator(), num_workers=num_workers), loader(OwnIterator(), num_workers=num_workers)
    whole = [batch.tolist() for batch in one]
    other.load_state_dict(save_and_load(one.state_dict()))
    assert [batch.tolist() for batch in other] == whole


@pytest.mark.alike
@pytest.mark.parametrize("route", ["folder", "resident", "fallback"])
@pytest.mark.parametrize("batches", [2, None])
def test_state_can_be_stored_as_json(images, route, batches):
    """The state includes generators of torch, of Python, and of both kinds of NumPy."""

    def make():
        dataset, options = ROUTES[route](images)
        order = torch.utils.data.RandomSampler(dataset, generator=torch.Generator().manual_seed(5))
        order.mine = random.Random(3)
        order.others = np.random.default_rng(4)
        order.others_still = np.random.Generator(np.random.Philox(7))
        return loader(dataset, sampler=order, **options)

    one = make()
    if batches is None:
        epochs(one, 1)
    else:
        iterator = iter(one)
        for _ in range(batches):
            next(iterator)
    state = one.state_dict()
    text = json.dumps(state)
    assert json.loads(text) == state
    made = []
    for known in (state, json.loads(text)):
        other = make()
        other.load_state_dict(known)
        made.append(repr(epochs(other, 2)))
    assert made[0] == made[1] and (batches or made[0] != repr(epochs(make(), 2)))


class CountsSamplesLater(CountsSamples):
    """A data set without a state before its first sample."""

    def state_dict(self):
        return super().state_dict() if self.made else None


@pytest.mark.parametrize("kind", [CountsSamples, CountsSamplesLater])
def test_state_of_the_data_set_is_restored(kind):
    one = loader(kind())
    list(one)
    other = loader(kind())
    other.load_state_dict(save_and_load(one.state_dict()))
    iter(other)
    assert other.dataset.made == COUNT


def test_state_dict_method_with_arguments_is_ignored():
    class Counted(Noise):
        def state_dict(self, num_samples):
            raise AssertionError

        load_state_dict = state_dict

    one = loader(Counted())
    next(iter(one))
    other = loader(Counted())
    other.load_state_dict(one.state_dict())
    assert len(list(other)) == 4 and one.state_dict()["dataset"] is None


@pytest.mark.alike
@pytest.mark.parametrize("changed", [(0, 2), (2, 0), (2, 1)])
@pytest.mark.parametrize("kind", ["shuffle", "generator", "sampler", "lazily", "stateful"])
def test_order_is_resumed_with_another_number_of_torchs_workers(kind, changed):
    """A warning tells that the random numbers of the data set will differ."""
    draw = {
        "shuffle": lambda: {"shuffle": True},
        "generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
        "sampler": lambda: {"sampler": data.RandomSampler(range(COUNT), generator=torch.Generator().manual_seed(4))},
        "lazily": lambda: {"sampler": Yields(lambda: (random.randrange(COUNT) for _ in range(COUNT)), COUNT)},
        "stateful": lambda: {"sampler": StatefulSampler()},
    }[kind]
    before, after = ({"num_workers": number} for number in changed)
    whole = epochs(one := loader(Indices(), **before | draw()), states=(states := []))
    assert len(states) == 2 * 6 and one is not None
    for epoch, batch, state in (states[1], states[6], states[9]):
        other = loader(Indices(), 7, **after | draw())
        with pytest.warns(UserWarning, match=r"random numbers will differ: route: .*num_workers"):
            other.load_state_dict(save_and_load(state))
        assert epochs(other, EPOCHS - epoch) == [whole[epoch][batch:], *whole[epoch + 1 :]]


class Indices(Noise):
    def __getitem__(self, index):
        return index


class SometimesReadsPixels(data.Dataset):
    """A data set whose route depends on more than its arguments."""

    reads_pixels = False

    def __init__(self, root):
        self.paths, self.tf = [path for path, _ in DALIImageFolder(root).samples], T.CenterCrop(16)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = self.tf(T.functional.to_tensor(Image.open(self.paths[index]).convert("RGB")))
        return (torch.from_numpy(image.numpy()) if self.reads_pixels else image), index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_order_is_resumed_if_the_route_of_the_data_set_differs(images, num_workers):
    def make(reads_pixels, seed=0, **changes):
        dataset = SometimesReadsPixels(images)
        dataset.reads_pixels = reads_pixels
        vars(dataset).update(changes)
        return loader(dataset, seed, shuffle=True, num_workers=num_workers)

    def order(one, count=1):
        return [[batch[1].tolist() for batch in one] for _ in range(count)]

    for reads_pixels in (False, True):
        whole, one = order(make(reads_pixels), 2), make(reads_pixels)
        iterator = iter(one)
        next(iterator), next(iterator)
        state, other = save_and_load(one.state_dict()), make(not reads_pixels, 7)
        assert one.explain().startswith("torchvision route") is reads_pixels
        assert other.explain().startswith("torchvision route") is not reads_pixels
        with pytest.warns(UserWarning, match="random numbers will differ: route"):
            other.load_state_dict(state)
        assert order(other, 2) == [whole[0][2:], whole[1]]
        with pytest.raises(ValueError, match="transforms: was"):
            make(reads_pixels, tf=T.CenterCrop(8)).load_state_dict(state)


def test_another_number_of_workers_raises_for_a_stream_with_state_dict():
    one = loader(Stream("whole"), num_workers=1)
    with pytest.raises(ValueError, match="num_workers=2"):
        loader(Stream("whole"), num_workers=2).load_state_dict(one.state_dict())


# ---- the time of the state


def test_state_after_the_last_batch_resumes_with_an_empty_epoch():
    one, states = loader(arrays(), shuffle=True), []
    epochs(one, 1, states)
    other = loader(arrays(), shuffle=True)
    other.load_state_dict(states[-1][2])
    assert len(list(other)) == 0 and len(list(other)) == 5


def test_state_does_not_include_prefetched_batches(images):
    one = loader(DALIImageFolder(images, RANDOM), shuffle=True, num_workers=2, prefetch_factor=4)
    iterator = iter(one)
    batches = [fingerprint(next(iterator)) for _ in range(2)]
    time.sleep(0.05)
    state = one.state_dict()
    batches += map(fingerprint, iterator)
    other = loader(DALIImageFolder(images, RANDOM), 1, shuffle=True)  # another number of workers
    other.load_state_dict(state)
    assert [fingerprint(batch) for batch in other] == batches[2:]


def test_state_of_an_abandoned_epoch_is_resumed():
    one = loader(arrays(), shuffle=True)
    whole = [fingerprint(batch) for batch in one]
    one = loader(arrays(), shuffle=True)
    for _ in zip(range(2), one, strict=False):
        pass
    state = one.state_dict()
    other = loader(arrays(), 5, shuffle=True)
    other.load_state_dict(state)
    assert [fingerprint(batch) for batch in other] == whole[2:]


def test_loaded_state_can_be_saved_again_before_iterating():
    one, states = loader(arrays(), shuffle=True), []
    whole = epochs(one, states=states)
    other = loader(arrays(), 5, shuffle=True)
    other.load_state_dict(states[2][2])
    third = loader(arrays(), 6, shuffle=True)
    third.load_state_dict(other.state_dict())
    assert epochs(third) == [whole[0][2:], whole[1]]


@pytest.mark.parametrize("number", [3, 6])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_unused_iterators_do_not_consume_the_loaded_state(num_workers, number):
    one, states = loader(arrays(), shuffle=True), []
    whole = epochs(one, states=states)
    epoch, batch, state = states[number]
    other = loader(arrays(), 5, shuffle=True, num_workers=num_workers)
    other.load_state_dict(state)
    iter(other), iter(other)
    assert epochs(other, EPOCHS - epoch) == [whole[epoch][batch:], *whole[epoch + 1 :]]


def test_resuming_repeatedly_is_exact():
    one = loader(arrays(), shuffle=True)
    whole = epochs(one)
    one, seen = loader(arrays(), shuffle=True), []
    while len(seen) < 4:
        for batch in one:
            seen.append(fingerprint(batch))
            torch.rand(3)
            break
        state = save_and_load(one.state_dict())
        one = loader(arrays(), len(seen), shuffle=True)
        one.load_state_dict(state)
    assert seen == whole[0][:4] and epochs(one) == [whole[0][4:], whole[1]]


def test_resuming_two_loaders_that_run_at_once_is_exact():
    def both(seed=0):
        return loader(arrays(), seed, shuffle=True), loader(arrays(), seed, shuffle=True, generator=None, batch_size=4)

    def steps(pair):
        for a, b in zip(*pair, strict=False):
            yield fingerprint(a), fingerprint(b)
            torch.rand(2)

    pair = both()
    whole = [list(steps(pair)), list(steps(pair))]
    pair, rest = both(), []
    running = steps(pair)
    begun = [next(running), next(running)]
    torch.rand(2)
    states = [one.state_dict() for one in pair]
    other = both(9)
    for one, state in zip(other, states, strict=True):
        one.load_state_dict(save_and_load(state))
    rest = [list(steps(other)), list(steps(other))]
    assert [begun + rest[0], rest[1]] == whole


def test_resuming_is_exact_if_the_model_draws_between_iter_and_next():
    def make(seed=0):
        return loader(arrays(), seed, shuffle=True)

    one = make()
    iterator = iter(one)
    torch.rand(9)
    batches = [fingerprint(batch) for batch in iterator]
    one = make()
    iterator = iter(one)
    torch.rand(9)
    next(iterator), next(iterator)
    other = make(4)
    other.load_state_dict(one.state_dict())
    assert [fingerprint(batch) for batch in other] == batches[2:]


@pytest.mark.parametrize("policy", ["replace", "skip"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.filterwarnings("ignore")
def test_resuming_is_exact_with_on_error(tmp_path, policy, num_workers):
    root = make_folder(tmp_path / "bad", classes=2, per_class=6, special=False, low=30, high=40)
    for name in ("00.jpg", "03.jpg"):
        (root / "class_a" / name).write_bytes(b"no image")

    def make(seed=0):
        dataset = DALIImageFolder(root, RANDOM, return_index=True)
        return loader(dataset, seed, batch_size=3, shuffle=True, on_error=policy, num_workers=num_workers)

    one, states = make(), []
    whole = epochs(one, states=states)
    for number in (2, 6):
        epoch, batch, state = states[number]
        other = make(3)
        other.load_state_dict(save_and_load(state))
        assert epochs(other, EPOCHS - epoch) == [whole[epoch][batch:], *whole[epoch + 1 :]]
        assert sorted(other.errors) == sorted(one.errors) and len(one.errors) >= 2


# ---- loading into another loader


@pytest.mark.parametrize(
    "name, change",
    {
        "batch_size": {"batch_size": 4},
        "drop_last": {"drop_last": True},
        "sampler": {"sampler": data.SequentialSampler(range(COUNT)), "shuffle": None},
    }.items(),
)
def test_loading_into_a_different_loader_raises_with_the_argument(name, change):
    one = loader(arrays(), shuffle=True)
    next(iter(one))
    with pytest.raises(ValueError, match=rf"(?s)strict=False.*{name}"):
        loader(arrays(), **{"shuffle": True} | change).load_state_dict(one.state_dict())


def test_loading_into_another_data_set_or_transform_raises(images):
    state = loader(arrays()).state_dict()
    changed, turned = arrays(), arrays()
    changed.data = changed.data.copy()
    changed.data[0] += 1
    turned.transform = T.ToTensor()
    for dataset, name in ((changed, "data set"), (turned, "transform"), (DALIImageFolder(images, RANDOM), "route")):
        with pytest.raises(ValueError, match=name) as refused:
            loader(dataset).load_state_dict(state)
        assert name == "route" or str(refused.value).count("\n") == 1


def test_long_targets_are_compared_completely(images):
    paths = [path for path, _ in DALIImageFolder(images).samples]
    targets = torch.zeros(len(paths), 2000)
    state = loader(DALIImageList(paths, targets, RANDOM)).state_dict()
    changed = targets.clone()
    changed[:, 1000] = 1
    loader(DALIImageList(paths, targets.clone(), RANDOM)).load_state_dict(state)
    with pytest.raises(ValueError, match="data set"):
        loader(DALIImageList(paths, changed, RANDOM)).load_state_dict(state)


def test_state_describes_the_current_samples(images):
    """The data set may have changed since the loader's last state."""
    paths = [path for path, _ in DALIImageFolder(images).samples]
    first, second = list(range(len(paths))), list(range(len(paths)))[::-1]
    one = loader(DALIImageList(paths, first, RANDOM))
    of_first = one.state_dict()
    one.dataset.targets = second
    next(iter(one))
    loader(DALIImageList(paths, second, RANDOM)).load_state_dict(one.state_dict())
    for other in (one, loader(DALIImageList(paths, second, RANDOM))):
        with pytest.raises(ValueError, match="data set"):
            other.load_state_dict(of_first)


@pytest.mark.parametrize("route", ["folder", "resident", "fallback"])
def test_transform_set_before_loading_a_state_is_compared(images, route):
    """A script with progressive resizing does this before it resumes."""

    def make(size):
        pixels = FakeData(COUNT, (3, 40, 40))
        dataset = {"folder": DALIImageFolder(images), "resident": arrays(), "fallback": pixels}[route]
        dataset.transform = T.Compose([T.RandomCrop(size), T.ToTensor()])
        return loader(dataset)

    one, other = make(16), make(8)
    small = other.state_dict()
    rest = list(one)[1:]
    one = make(16)
    next(iter(one))
    other.dataset.transform = one.dataset.transform
    other.load_state_dict(one.state_dict())
    assert fingerprint(list(other)) == fingerprint(rest)
    with pytest.raises(ValueError, match="transform"):
        other.load_state_dict(small)


def test_another_batch_size_resumes_with_the_same_samples():
    one = loader(arrays(), shuffle=True)
    iterator = iter(one)
    had = [next(iterator)[1].tolist() for _ in range(2)]
    rest = [index for batch in iterator for index in batch[1].tolist()]
    one = loader(arrays(), shuffle=True)
    assert [batch[1].tolist() for _, batch in zip(range(2), one, strict=False)] == had
    other = loader(arrays(), 3, shuffle=True, batch_size=7)
    other.load_state_dict(one.state_dict(), strict=False)
    assert [batch[1].tolist() for batch in other] == [rest[:7], rest[7:]]


def test_invalid_state_raises_and_changes_nothing():
    one = loader(arrays())
    with pytest.raises(ValueError, match="expected the result of state_dict"):
        one.load_state_dict({"epoch": 3})
    state = one.state_dict()
    next(iter(one))
    under_way = one.state_dict()
    for wrong in (None, 3, [1], "", b"state"):
        with pytest.raises(ValueError, match=r"invalid loader state"):
            one.load_state_dict(wrong)
    assert one.state_dict()["epoch"] == under_way["epoch"]  # the running epoch is unaffected
    one.load_state_dict({})
    assert len(list(one)) == 5 and state["epoch"] is None


def _fields(value, path=()):
    """Yield the path of each field of a state, at any depth."""
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _fields(one, (*path, name))


def _replace_field(value, path, wrong):
    if not path:
        return wrong
    changed = copy.copy(value)
    changed[path[0]] = _replace_field(value[path[0]], path[1:], wrong)
    return changed


WRONG = None, "text", -1.5, [], {}, [None], torch.zeros(2)
OUT_OF_RANGE = -1, 10**30, True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "route, num_workers", [("folder", 0), ("resident", 0), ("resident", 2), ("fallback", 0), ("fallback", 2)]
)
def test_field_of_a_wrong_type_raises_with_its_name(images, route, num_workers):
    """If a changed state is accepted, an epoch can start from it."""
    dataset, options = ROUTES[route](images)
    options = options | {"persistent_workers": True} if num_workers else options
    one = loader(dataset, shuffle=True, num_workers=num_workers, **options)
    epochs(one, 1)
    states = [one.state_dict()]
    iterator = iter(one)
    next(iterator), next(iterator)
    states.append(one.state_dict())
    refused = 0
    for state in states:
        for path in _fields(state):
            for wrong in WRONG:
                changed = _replace_field(state, path, wrong)
                try:
                    one.load_state_dict(changed, strict=False)
                except ValueError as error:
                    refused += 1
                    assert [name for name in path if isinstance(name, str)][-1] in str(error), path
                    assert one.state_dict()["epoch"] == states[1]["epoch"]  # the running epoch is unaffected
                else:
                    if not num_workers:
                        next(iter(one), None)
                    one.load_state_dict(states[1])
    assert refused > 250
    assert len(epochs(one, 1)[0]) == -(-len(dataset) // BATCH) - 2


@pytest.mark.parametrize("sampler", [None, data.DistributedSampler])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_number_out_of_range_raises_when_it_is_loaded(sampler, num_workers):
    dataset = arrays()
    sampler = sampler and sampler(dataset, 2, 0)
    one = loader(dataset, sampler=sampler, num_workers=num_workers, persistent_workers=num_workers > 0)
    next(iter(one))
    state = one.state_dict()
    counts = {"places": 0, "seed": 0, "last": 0} | dict.fromkeys(("number", "given", "samples", "drawn"))
    for wrong in OUT_OF_RANGE:
        for name, row in counts.items():
            path = ("epoch", name) if row is None else ("epoch", name, row)
            with pytest.raises(ValueError, match=rf"invalid loader state: epoch\.{name}"):
                one.load_state_dict(_replace_field(state, path, wrong))
        for path in (("begun",), ("ranks", 1), ("errors", "count"), *([("laps", 0)] if num_workers else [])):
            with pytest.raises(ValueError, match=rf"invalid loader state: {path[0]}"):
                one.load_state_dict(_replace_field(state, path, wrong))
    with pytest.raises(ValueError, match="state: epoch is None"):
        one.load_state_dict(_replace_field(state, ("epoch",), None))
    del state["under_way"]  # a state of version 1.1 has no such field
    one.load_state_dict(state)
    assert len(list(one)) == len(one) - 1


def test_size_and_cost_of_a_state_do_not_grow_with_epochs():
    one = loader(arrays(), shuffle=True)
    epochs(one, 20)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    assert file.tell() < 200_000
    new = loader(arrays(), shuffle=True)
    epochs(new, 2)
    for each in (one, new):
        each.state_dict()  # fill caches
    assert calls_of(one.state_dict) == calls_of(new.state_dict) < 1000


# ---- ranks


def rank_loader(rank, world, seed=0, dataset=None, batch_size=3, epoch=1, drop_last=False):
    dataset = dataset or arrays()
    sampler = DistributedSampler(dataset, world, rank, drop_last=drop_last)
    sampler.set_epoch(epoch)
    return loader(dataset, seed, sampler=sampler, batch_size=batch_size)


def pixels_by_label(batch) -> dict:
    return {
        label: zlib.crc32(image.numpy().tobytes()) for image, label in zip(batch[0], batch[1].tolist(), strict=True)
    }


def read_batches(one, count):
    """Return the samples of the next ``count`` batches, and the state after them."""
    found: list = []
    for batch in one:
        found += pixels_by_label(batch).items()
        count -= 1
        if not count:
            break
    return found, one.state_dict()


def test_pixels_are_equal_for_any_number_of_ranks():
    single = dict(read_batches(rank_loader(0, 1), 0)[0])
    assert len(single) == COUNT
    for world in (2, 3, 5):
        for rank in range(world):
            for index, pixels in read_batches(rank_loader(rank, world), 0)[0][: COUNT // world]:
                assert pixels == single[index]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("one_state", [False, True])
def test_resuming_with_other_numbers_of_ranks_reads_each_sample_once(one_state, drop_last):
    whole = dict(read_batches(rank_loader(0, 1), 0)[0])
    had: list = []
    state = None
    for world, batches in ((2, 2), (1, 1), (3, 0)):
        states = []
        for rank in range(world):
            one = rank_loader(rank, world, seed=rank if state else 0, drop_last=drop_last)
            if state is not None:
                one.load_state_dict(save_and_load(state))
            found, mine = read_batches(one, batches)
            had += found
            states.append(mine)
        state = states[-1] if one_state else merge_states(states[::-1])
    # 24 samples: 2 x 6, then 3, then the remaining 9 for three ranks
    assert sorted(index for index, _ in had) == list(range(COUNT)) and dict(had) == whole


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_with_other_numbers_of_ranks_works_on_the_fallback_route(num_workers):
    def make(rank, world):
        return loader(Noise(), sampler=DistributedSampler(Noise(), world, rank), batch_size=3, num_workers=num_workers)

    had: list[int] = []
    for rank in range(2):
        one = make(rank, 2)
        for batch, _ in zip(one, range(2), strict=False):
            had += batch[0][:, 0].long().tolist()
            state = one.state_dict()
            if state["epoch"]["given"] == 2:
                break
    for rank in range(3):
        one = make(rank, 3)
        one.load_state_dict(state)
        had += [index for batch in one for index in batch[0][:, 0].long().tolist()]
    assert sorted(had) == list(range(COUNT))


def test_ranks_repeat_samples_only_at_the_end():
    _, state = read_batches(rank_loader(0, 1), 1)
    had = [index for rank in range(4) for index, _ in _resume(rank_loader(rank, 4, 8), state)]
    assert len(had) == 24 and len(set(had)) >= 21


def _resume(one, state):
    one.load_state_dict(state)
    return read_batches(one, 0)[0]


def test_resuming_with_the_same_ranks_is_exact():
    whole = [read_batches(rank_loader(rank, 2), 0)[0] for rank in range(2)]
    states = [read_batches(rank_loader(rank, 2), 2)[1] for rank in range(2)]
    for rank in range(2):
        assert _resume(rank_loader(rank, 2, 5), merge_states(states)) == whole[rank][6:]
        assert _resume(rank_loader(rank, 2, 5), states[0]) == whole[rank][6:]


def test_merging_states_of_different_batches_raises():
    states = [read_batches(rank_loader(rank, 2), 1 + rank)[1] for rank in range(2)]
    message = (
        r"different batches \(after batch 0 of epoch 0: rank 0; after batch 1 of epoch 0: rank 1\); .* on all ranks"
    )
    with pytest.raises(ValueError, match=message):
        merge_states(states)
    assert [_resume(rank_loader(rank, 2, 5), states[1]) for rank in range(2)] == [
        read_batches(rank_loader(rank, 2), 0)[0][6:] for rank in range(2)
    ]  # one state for all ranks, as the message suggests
    places = [read_batches(rank_loader(rank, 4), count) for rank, count in enumerate((1, 1, 0, 1))]
    places[3] = None, rank_loader(3, 4).state_dict()
    message = r"\(after batch 0 of epoch 0: rank 0, 1; at the end of epoch 0: rank 2; before the first epoch: rank 3\)"
    with pytest.raises(ValueError, match=message):
        merge_states([state for _, state in places])
    for wrong in ([{}, states[0]], [merge_states([one.state_dict()]) for one in [rank_loader(0, 1)]]):
        with pytest.raises(ValueError, match=r"of each rank, not a merged state"):
            merge_states(wrong)
    with pytest.raises(ValueError, match="exactly one state from each rank"):
        merge_states(states[1:])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_is_exact_if_whole_batches_were_skipped(tmp_path, num_workers, fallback):
    root = make_folder(tmp_path / "bad", classes=2, per_class=9, special=False, low=30, high=40)
    for index in (3, 4, 5, 9, 10, 11, 15, 16, 17):
        (root / f"class_{'ab'[index // 9]}" / f"{index % 9:02d}.jpg").write_bytes(b"no image")

    def make():
        # the fallback does not draw reproducibly
        transform = T.Compose([T.CenterCrop(16), T.ToTensor()]) if fallback else RANDOM
        dataset = DALIImageFolder(root, transform, return_index=True)
        if fallback:
            dataset.loader = lambda path: Image.fromarray(np.asarray(Image.open(path).convert("RGB")))
        return loader(dataset, batch_size=3, on_error="skip", num_workers=num_workers)

    one, states = make(), []
    whole = epochs(one, states=states)
    assert [len(batches) for batches in whole] == [3, 3]
    other = make()
    other.load_state_dict(save_and_load(states[2][2]))  # within the first epoch
    assert epochs(other) == [whole[0][2:], whole[1]]


@pytest.mark.parametrize("wrap", [lambda dataset: dataset, Wrapped], ids=["DALI", "torch's own"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_failed_batch_is_repeated_unless_the_loop_continued(tmp_path, wrap, num_workers):
    root = make_folder(tmp_path / "bad", classes=1, per_class=12, special=False)
    file = root / "class_a" / "04.jpg"
    whole = file.read_bytes()
    file.write_bytes(b"no image")

    def make():
        return loader(wrap(DALIImageFolder(root, RANDOM, return_index=True)), batch_size=3, num_workers=num_workers)

    one = make()
    iterator = iter(one)
    next(iterator)
    with pytest.raises(OSError, match="04"):
        next(iterator)
    states = [one.state_dict()]
    assert next(iterator)[2].tolist() == [6, 7, 8]  # as in torch's iterator
    states.append(one.state_dict())
    file.write_bytes(whole)
    for state, rest in zip(states, ([[3, 4, 5], [6, 7, 8], [9, 10, 11]], [[9, 10, 11]]), strict=True):
        other = make()
        other.load_state_dict(save_and_load(state))
        assert [batch[2].tolist() for batch in other] == rest


def test_copied_loader_starts_without_epochs():
    one = loader(arrays(), shuffle=True)
    list(one)
    assert copy.copy(one).state_dict()["begun"] == 0


def test_error_shows_a_state_that_is_not_a_loaders(folder):
    for wrong, message in (({"model": 1}, "got {'model': 1}"), ({"version": 99}, "'version' must be 1, got 99")):
        with pytest.raises(ValueError, match=message):
            loader(folder).load_state_dict(wrong)


class Dying(data.Dataset):
    """Numbers; the process that loads sample 5 exits if the file ``mark`` exists."""

    def __init__(self, mark):
        self.mark = mark

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 5 and self.mark.exists():
            os._exit(3)
        return torch.tensor(index)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_worker_that_dies_while_earlier_batches_are_loaded_again_raises(tmp_path, num_workers):
    dataset = Dying(tmp_path / "mark")
    interrupted = loader(dataset, batch_size=4, num_workers=num_workers)
    iterator = iter(interrupted)
    for _ in range(4):
        next(iterator)
    state, rest = interrupted.state_dict(), [batch.tolist() for batch in iterator]
    dataset.mark.touch()
    resumed = loader(dataset, batch_size=4, num_workers=num_workers)
    resumed.load_state_dict(state)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(resumed)
    dataset.mark.unlink()
    resumed = loader(dataset, batch_size=4, num_workers=num_workers)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest and len(rest) == 6

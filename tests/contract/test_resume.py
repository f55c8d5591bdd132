"""Going on from a state: the same batches, random numbers and generators as without an interruption."""

import copy
import io
import json
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
from contract.storages import stored
from contract.test_order import CASES, Yields
from dali_compat import DALIArrayDataset, DALIImageFolder, DALIImageList, DataLoader, merge_states

COUNT, BATCH, EPOCHS = 24, 5, 2
AUGMENTED = T.Compose([T.RandomCrop(16, padding=2), T.RandomHorizontalFlip(), T.ToTensor()])


def arrays():
    """24 random images, whose labels are their indices."""
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 16, 16, 3), dtype=np.uint8)
    return DALIArrayDataset(pixels, list(range(COUNT)), AUGMENTED)


class Own(data.Dataset):
    """No image folder: torch's loader does the work. Draws from all generators."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.rand(2) + index, np.random.rand() + random.random()


def noisy(image):
    return image + torch.rand(())


def own_collate(samples):
    images, labels = zip(*[sample[:2] for sample in samples], strict=True)
    return torch.stack(images) + torch.rand(()), torch.tensor(labels) + random.random()


def loader(dataset, seed=0, **options) -> DataLoader:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    return DataLoader(dataset, device="cpu", **{"fallback": "silent", "batch_size": BATCH} | options)


def key(batch):
    """All of a batch, to be compared."""
    if isinstance(batch, torch.Tensor):
        return tuple(batch.shape), zlib.crc32(batch.numpy().tobytes())
    return [key(part) for part in batch] if isinstance(batch, (list, tuple)) else batch


def saved(state):
    """As from a file that torch.load() trusts nobody about."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def epochs(one, count=EPOCHS, states=None, draws=3) -> list[list]:
    """Batches of each epoch, with steps that draw; ``states`` gets the state before and after each step, and how many
    epochs and batches came before."""
    made: list[list] = []
    for _ in range(count):
        made.append([])
        if states is not None:
            states.append((len(made) - 1, 0, one.state_dict()))
        for batch in one:
            made[-1].append(key(batch))
            torch.rand(draws)
            if states is not None:
                states.append((len(made) - 1, len(made[-1]), one.state_dict()))
    return made


def generators(one) -> list:
    """What it draws from, as it is now."""
    own = [g for g in (one.generator, getattr(one.sampler, "generator", None)) if g]
    found = [g.get_state() for g in own] if one.generator else [torch.get_rng_state(), *(g.get_state() for g in own)]
    return [zlib.crc32(state.numpy().tobytes()) for state in found]


def assert_goes_on(make, picked, draws=3) -> None:
    """From the state before an epoch, within it and at its end."""
    first, states = make(), []
    whole = epochs(first, states=states, draws=draws)
    last = generators(first)
    for epoch, batch, state in [states[number] for number in picked if number < len(states)]:
        other = make(seed=7)
        other.load_state_dict(saved(state))
        rest = epochs(other, EPOCHS - epoch, draws=draws)
        assert rest == [whole[epoch][batch:], *whole[epoch + 1 :]], (epoch, batch)
        assert generators(other) == last


# ---- every sampler


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_every_sampler(case, num_workers):
    def make(seed=0):
        dataset = arrays()
        return loader(dataset, seed, num_workers=num_workers, **{"batch_size": 1} | _options(CASES[case](dataset)))

    assert_goes_on(make, (0, 1, 3, -2, -1), draws=0 if case == "draws in the sampler" else 3)


def _options(options: dict) -> dict:
    return options | {"batch_size": 1} if "batch_sampler" in options else options


class Shuffles(data.Sampler):
    """A user's: draws from Python and numpy, eagerly or not, and counts epochs."""

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
def test_a_users_sampler_draws_from_python_and_numpy(eagerly, batch_size):
    assert_goes_on(
        lambda seed=0: loader(arrays(), seed, sampler=Shuffles(eagerly), batch_size=batch_size), (0, 1, 3, 9)
    )


class Stateful(data.Sampler):
    """A user's that says where it is."""

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
def test_a_sampler_with_a_state_of_its_own(num_workers):
    assert_goes_on(
        lambda seed=0: loader(arrays(), seed, sampler=Stateful(), num_workers=num_workers), (0, 1, 3, 5, 6, 7)
    )


def test_a_sampler_that_shares_its_generator_when_resumed_restarts_the_epoch():
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


@pytest.mark.parametrize("dataset", [arrays, Own])
def test_a_sampler_with_a_hidden_state_when_resumed_restarts_the_epoch(dataset):
    hidden = random.Random(0)

    def make():
        return loader(dataset(), sampler=Yields(lambda: hidden.sample(range(COUNT), COUNT), COUNT))

    one = make()
    next(iter(one))
    state, other = one.state_dict(), make()
    other.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"returns other indices.*the epoch restarts"):
        assert len(list(other)) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(other)) == 5


# ---- every route


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("resume"), low=40, high=60)


ROUTES = {
    "folder": lambda images: (DALIImageFolder(images, RANDOM), {}),
    "cache": lambda images: (DALIImageFolder(images, RANDOM), {"cache": 10**8}),
    "call": lambda images: (DALIImageFolder(images, T.Compose([RANDOM, T.Lambda(noisy)])), {}),
    "collate_fn": lambda images: (DALIImageFolder(images, RANDOM), {"collate_fn": own_collate}),
    "resident": lambda images: (arrays(), {}),
    "fallback": lambda images: (Own(), {}),
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("route", ROUTES)
def test_every_route(images, route, num_workers):
    dataset, options = ROUTES[route](images)
    assert_goes_on(
        lambda seed=0: loader(dataset, seed, shuffle=True, num_workers=num_workers, **options), (1, 3, 6, -2)
    )


@pytest.mark.parametrize("storage", ["rec", "tar"])
def test_archives(images, storage, tmp_path):
    dataset = stored(images, storage, tmp_path)(RANDOM)
    assert_goes_on(lambda seed=0: loader(dataset, seed, shuffle=True), (3, 6))


@pytest.mark.parametrize("route", ["folder", "resident"])
def test_persistent_workers(images, route):
    def make(seed=0):
        return loader(ROUTES[route](images)[0], seed, shuffle=True, num_workers=2, persistent_workers=True)

    assert_goes_on(make, (0, 2, 5, 6, 8))


@pytest.mark.parametrize("before", [True, False])
def test_persistent_workers_that_change_are_told_of(before):
    def make(persistent):
        return loader(arrays(), shuffle=True, num_workers=2, persistent_workers=persistent)

    one = make(before)
    whole = epochs(one, 1, states := [])[0]
    _, given, state = states[2]
    other = make(not before)
    with pytest.warns(UserWarning, match="exact only until the end of its epoch: persistent_workers"):
        other.load_state_dict(state)
    assert epochs(other, 1)[0] == whole[given:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(before).load_state_dict(state)
        make(not before).load_state_dict(states[0][2])  # nothing was begun


def test_persistent_workers_of_torch_are_told_of():
    one = loader(Own(), num_workers=1, persistent_workers=True)
    for _ in range(2):
        for _ in one:
            pass
        with pytest.warns(UserWarning, match="persistent workers continue"):
            one.state_dict()


@pytest.mark.filterwarnings("ignore")
def test_the_order_goes_on_with_persistent_workers_of_torch():
    assert_goes_on(
        lambda seed=0: loader(Plain(), seed, shuffle=True, num_workers=2, persistent_workers=True), (1, 5, 6, 8, -1)
    )


def test_snapshot_every_n_steps_is_taken():
    assert loader(arrays(), snapshot_every_n_steps=5).snapshot_every_n_steps == 5


def test_iterable_data_sets():
    class Stream(data.IterableDataset):
        def __iter__(self):
            return iter(torch.rand(COUNT))

    assert_goes_on(lambda seed=0: loader(Stream(), seed), (1, 3, 6))


class Stream(data.IterableDataset):
    """Says where it is, as people write it: in "epochs" alone, on a "whole" epoch's way, or what it "resumes" at."""

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


class Counts(Own):
    """How many samples it has made is a part of each."""

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
def test_a_data_set_with_a_state_of_its_own(kind, num_workers):
    """torchdata's contract."""
    make = Counts if kind == "map" else lambda: Stream(kind)
    places = (1, 6, 8) if num_workers else (0, 1, 2, 5, 6, 7, 8, 10, 12)
    assert_goes_on(lambda seed=0: loader(make(), seed, num_workers=num_workers), places)


def test_a_stream_of_hugging_faces_is_loaded_again():
    """Its own state has no shuffle buffer."""
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


class Itself(data.IterableDataset):
    """Its own iterator. It says where it is, and how often it was asked, once it was."""

    asked = 0

    def __iter__(self):
        self.asked += 1
        self.place = {"at": 0}
        return self

    def __next__(self):
        if self.place["at"] == COUNT:
            raise StopIteration
        self.place["at"] += 1
        return self.place["at"]

    def state_dict(self):
        return {"at": self.place["at"], "asked": self.asked}

    def load_state_dict(self, state):
        self.place["at"], self.asked = state["at"], state["asked"]


@pytest.mark.alike
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("again", [False, True], ids=["a new one", "the same one"])
@pytest.mark.parametrize("batches", range(1, 6))
def test_a_data_set_that_is_its_own_iterator(batches, again, num_workers):
    dataset = Itself()
    one = loader(dataset, num_workers=num_workers)
    whole = [batch.tolist() for batch in loader(Itself(), num_workers=num_workers)]
    iterator = iter(one)
    for _ in range(batches):
        next(iterator)
    other = loader(dataset if again else Itself(), num_workers=num_workers)
    other.load_state_dict(saved(one.state_dict()))
    assert [batch.tolist() for batch in other] == whole[batches:]
    assert [batch.tolist() for batch in other] == whole


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_set_that_is_its_own_iterator_between_epochs(num_workers):
    one, other = loader(Itself(), num_workers=num_workers), loader(Itself(), num_workers=num_workers)
    whole = [batch.tolist() for batch in one]
    other.load_state_dict(saved(one.state_dict()))
    assert [batch.tolist() for batch in other] == whole


@pytest.mark.alike
@pytest.mark.parametrize("route", ["folder", "resident", "fallback"])
@pytest.mark.parametrize("batches", [2, None])
def test_a_state_as_json(images, route, batches):
    """Of all generators: torch's, Python's, NumPy's old one and new ones."""

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


class CountsLater(Counts):
    """It has no state before its first sample."""

    def state_dict(self):
        return super().state_dict() if self.made else None


@pytest.mark.parametrize("kind", [Counts, CountsLater])
def test_the_state_of_a_data_set_is_put_into_it(kind):
    one = loader(kind())
    list(one)
    other = loader(kind())
    other.load_state_dict(saved(one.state_dict()))
    iter(other)
    assert other.dataset.made == COUNT


def test_a_state_dict_that_takes_arguments_is_another_contract():
    class Counted(Own):
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
def test_another_number_of_torchs_workers(kind, changed):
    """The order is the same; a warning says that what the data set draws is not."""
    draw = {
        "shuffle": lambda: {"shuffle": True},
        "generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
        "sampler": lambda: {"sampler": data.RandomSampler(range(COUNT), generator=torch.Generator().manual_seed(4))},
        "lazily": lambda: {"sampler": Yields(lambda: (random.randrange(COUNT) for _ in range(COUNT)), COUNT)},
        "stateful": lambda: {"sampler": Stateful()},
    }[kind]
    before, after = ({"num_workers": number} for number in changed)
    whole = epochs(one := loader(Plain(), **before | draw()), states=(states := []))
    assert len(states) == 2 * 6 and one is not None
    for epoch, batch, state in (states[1], states[6], states[9]):
        other = loader(Plain(), 7, **after | draw())
        with pytest.warns(UserWarning, match=r"random numbers will differ: route: .*num_workers"):
            other.load_state_dict(saved(state))
        assert epochs(other, EPOCHS - epoch) == [whole[epoch][batch:], *whole[epoch + 1 :]]


class Plain(Own):
    def __getitem__(self, index):
        return index


class Opens(data.Dataset):
    """Whether DALI makes its images depends on more than its arguments, as it may on what a script has drawn."""

    looks = False

    def __init__(self, root):
        self.paths, self.tf = [path for path, _ in DALIImageFolder(root).samples], T.CenterCrop(16)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = self.tf(T.functional.to_tensor(Image.open(self.paths[index]).convert("RGB")))
        return (torch.from_numpy(image.numpy()) if self.looks else image), index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_of_a_data_set_does_not_depend_on_who_loads_it(images, num_workers):
    def make(looks, seed=0, **changes):
        dataset = Opens(images)
        dataset.looks = looks
        vars(dataset).update(changes)
        return loader(dataset, seed, shuffle=True, num_workers=num_workers)

    def order(one, count=1):
        return [[batch[1].tolist() for batch in one] for _ in range(count)]

    for looks in (False, True):
        whole, one = order(make(looks), 2), make(looks)
        iterator = iter(one)
        next(iterator), next(iterator)
        state, other = saved(one.state_dict()), make(not looks, 7)
        assert one.explain().startswith("torchvision route") is looks
        assert other.explain().startswith("torchvision route") is not looks
        with pytest.warns(UserWarning, match="random numbers will differ: route"):
            other.load_state_dict(state)
        assert order(other, 2) == [whole[0][2:], whole[1]]
        with pytest.raises(ValueError, match="transforms: was"):
            make(looks, tf=T.CenterCrop(8)).load_state_dict(state)


def test_another_number_of_workers_that_share_a_stream_is_refused():
    one = loader(Stream("whole"), num_workers=1)
    with pytest.raises(ValueError, match="num_workers=2"):
        loader(Stream("whole"), num_workers=2).load_state_dict(one.state_dict())


# ---- when a state is taken


def test_nothing_is_left_where_the_last_batch_was_had():
    one, states = loader(arrays(), shuffle=True), []
    epochs(one, 1, states)
    other = loader(arrays(), shuffle=True)
    other.load_state_dict(states[-1][2])
    assert len(list(other)) == 0 and len(list(other)) == 5


def test_batches_in_flight_do_not_count(images):
    one = loader(DALIImageFolder(images, RANDOM), shuffle=True, num_workers=2, prefetch_factor=4)
    iterator = iter(one)
    batches = [key(next(iterator)) for _ in range(2)]
    time.sleep(0.05)
    state = one.state_dict()
    batches += map(key, iterator)
    other = loader(DALIImageFolder(images, RANDOM), 1, shuffle=True)  # another number of workers
    other.load_state_dict(state)
    assert [key(batch) for batch in other] == batches[2:]


def test_an_abandoned_iterator_is_gone_on_with():
    one = loader(arrays(), shuffle=True)
    whole = [key(batch) for batch in one]
    one = loader(arrays(), shuffle=True)
    for _ in zip(range(2), one, strict=False):
        pass
    state = one.state_dict()
    other = loader(arrays(), 5, shuffle=True)
    other.load_state_dict(state)
    assert [key(batch) for batch in other] == whole[2:]


def test_a_state_that_was_loaded_and_not_used_is_saved_again():
    one, states = loader(arrays(), shuffle=True), []
    whole = epochs(one, states=states)
    other = loader(arrays(), 5, shuffle=True)
    other.load_state_dict(states[2][2])
    third = loader(arrays(), 6, shuffle=True)
    third.load_state_dict(other.state_dict())
    assert epochs(third) == [whole[0][2:], whole[1]]


@pytest.mark.parametrize("number", [3, 6])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterator_that_nobody_has_used_does_not_count(num_workers, number):
    one, states = loader(arrays(), shuffle=True), []
    whole = epochs(one, states=states)
    epoch, batch, state = states[number]
    other = loader(arrays(), 5, shuffle=True, num_workers=num_workers)
    other.load_state_dict(state)
    iter(other), iter(other)
    assert epochs(other, EPOCHS - epoch) == [whole[epoch][batch:], *whole[epoch + 1 :]]


def test_gone_on_with_twice():
    one = loader(arrays(), shuffle=True)
    whole = epochs(one)
    one, seen = loader(arrays(), shuffle=True), []
    while len(seen) < 4:
        for batch in one:
            seen.append(key(batch))
            torch.rand(3)
            break
        state = saved(one.state_dict())
        one = loader(arrays(), len(seen), shuffle=True)
        one.load_state_dict(state)
    assert seen == whole[0][:4] and epochs(one) == [whole[0][4:], whole[1]]


def test_loaders_at_once():
    def both(seed=0):
        return loader(arrays(), seed, shuffle=True), loader(arrays(), seed, shuffle=True, generator=None, batch_size=4)

    def steps(pair):
        for a, b in zip(*pair, strict=False):
            yield key(a), key(b)
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
        one.load_state_dict(saved(state))
    rest = [list(steps(other)), list(steps(other))]
    assert [begun + rest[0], rest[1]] == whole


def test_the_model_may_draw_between_iter_and_next():
    def make(seed=0):
        return loader(arrays(), seed, shuffle=True)

    one = make()
    iterator = iter(one)
    torch.rand(9)
    batches = [key(batch) for batch in iterator]
    one = make()
    iterator = iter(one)
    torch.rand(9)
    next(iterator), next(iterator)
    other = make(4)
    other.load_state_dict(one.state_dict())
    assert [key(batch) for batch in other] == batches[2:]


@pytest.mark.parametrize("policy", ["replace", "skip"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.filterwarnings("ignore")
def test_on_error(tmp_path, policy, num_workers):
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
        other.load_state_dict(saved(state))
        assert epochs(other, EPOCHS - epoch) == [whole[epoch][batch:], *whole[epoch + 1 :]]
        assert sorted(other.errors) == sorted(one.errors) and len(one.errors) >= 2


# ---- another loader


@pytest.mark.parametrize(
    "name, change",
    {
        "batch_size": {"batch_size": 4},
        "drop_last": {"drop_last": True},
        "sampler": {"sampler": data.SequentialSampler(range(COUNT)), "shuffle": None},
    }.items(),
)
def test_another_loader_is_refused_by_name(name, change):
    one = loader(arrays(), shuffle=True)
    next(iter(one))
    with pytest.raises(ValueError, match=rf"(?s)strict=False.*{name}"):
        loader(arrays(), **{"shuffle": True} | change).load_state_dict(one.state_dict())


def test_another_data_set_or_transform_is_refused_by_name(images):
    state = loader(arrays()).state_dict()
    changed, turned = arrays(), arrays()
    changed.data = changed.data.copy()
    changed.data[0] += 1
    turned.transform = T.ToTensor()
    for dataset, name in ((changed, "data set"), (turned, "transform"), (DALIImageFolder(images, RANDOM), "route")):
        with pytest.raises(ValueError, match=name) as refused:
            loader(dataset).load_state_dict(state)
        assert name == "route" or str(refused.value).count("\n") == 1


def test_targets_that_are_long_are_compared_in_full(images):
    paths = [path for path, _ in DALIImageFolder(images).samples]
    targets = torch.zeros(len(paths), 2000)
    state = loader(DALIImageList(paths, targets, RANDOM)).state_dict()
    changed = targets.clone()
    changed[:, 1000] = 1
    loader(DALIImageList(paths, targets.clone(), RANDOM)).load_state_dict(state)
    with pytest.raises(ValueError, match="data set"):
        loader(DALIImageList(paths, changed, RANDOM)).load_state_dict(state)


def test_a_state_is_of_the_samples_as_they_are(images):
    """A data set may have changed since a loader's last state."""
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
def test_a_transform_that_was_set_since_the_loader_was_made(images, route):
    """As a script with progressive sizes does, before it goes on."""

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
    assert key(list(other)) == key(rest)
    with pytest.raises(ValueError, match="transform"):
        other.load_state_dict(small)


def test_another_batch_size_goes_on_with_the_same_samples():
    one = loader(arrays(), shuffle=True)
    iterator = iter(one)
    had = [next(iterator)[1].tolist() for _ in range(2)]
    rest = [index for batch in iterator for index in batch[1].tolist()]
    one = loader(arrays(), shuffle=True)
    assert [batch[1].tolist() for _, batch in zip(range(2), one, strict=False)] == had
    other = loader(arrays(), 3, shuffle=True, batch_size=7)
    other.load_state_dict(one.state_dict(), strict=False)
    assert [batch[1].tolist() for batch in other] == [rest[:7], rest[7:]]


def test_no_state():
    one = loader(arrays())
    with pytest.raises(ValueError, match="version"):
        one.load_state_dict({"epoch": 3})
    state = one.state_dict()
    next(iter(one))
    under_way = one.state_dict()
    for wrong in (None, 3, [1], "", b"state"):
        with pytest.raises(ValueError, match=r"invalid loader state"):
            one.load_state_dict(wrong)
    assert one.state_dict()["epoch"] == under_way["epoch"]  # nothing is lost
    one.load_state_dict({})
    assert len(list(one)) == 5 and state["epoch"] is None


def _fields(value, path=()):
    """Every field of a state, however deep."""
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _fields(one, (*path, name))


def _with(value, path, wrong):
    if not path:
        return wrong
    changed = copy.copy(value)
    changed[path[0]] = _with(value[path[0]], path[1:], wrong)
    return changed


WRONG = None, "text", -1.5, [], {}, [None], torch.zeros(2)
OUT_OF_RANGE = -1, 10**30, True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "route, num_workers", [("folder", 0), ("resident", 0), ("resident", 2), ("fallback", 0), ("fallback", 2)]
)
def test_a_field_of_a_wrong_type_is_refused_by_name(images, route, num_workers):
    """Where a state is taken, an epoch can begin."""
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
                changed = _with(state, path, wrong)
                try:
                    one.load_state_dict(changed, strict=False)
                except ValueError as error:
                    refused += 1
                    assert [name for name in path if isinstance(name, str)][-1] in str(error), path
                    assert one.state_dict()["epoch"] == states[1]["epoch"]  # nothing is lost
                else:
                    if not num_workers:
                        next(iter(one), None)
                    one.load_state_dict(states[1])
    assert refused > 250
    assert len(epochs(one, 1)[0]) == -(-len(dataset) // BATCH) - 2


@pytest.mark.parametrize("sampler", [None, data.DistributedSampler])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_number_out_of_range_is_refused_when_it_is_loaded(sampler, num_workers):
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
                one.load_state_dict(_with(state, path, wrong))
        for path in (("begun",), ("ranks", 1), ("errors", "count"), *([("laps", 0)] if num_workers else [])):
            with pytest.raises(ValueError, match=rf"invalid loader state: {path[0]}"):
                one.load_state_dict(_with(state, path, wrong))
    with pytest.raises(ValueError, match="state: epoch is None"):
        one.load_state_dict(_with(state, ("epoch",), None))
    del state["under_way"]  # a state of version 1.1
    one.load_state_dict(state)
    assert len(list(one)) == len(one) - 1


def test_states_are_small_and_quick():
    one = loader(arrays(), shuffle=True)
    epochs(one, 20)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    assert file.tell() < 200_000
    new = loader(arrays(), shuffle=True)
    epochs(new, 2)
    for each in (one, new):
        each.state_dict()  # what is looked up once
    assert calls_of(one.state_dict) == calls_of(new.state_dict) < 1000


# ---- ranks


def ranked(rank, world, seed=0, dataset=None, batch_size=3, epoch=1, drop_last=False):
    dataset = dataset or arrays()
    sampler = DistributedSampler(dataset, world, rank, drop_last=drop_last)
    sampler.set_epoch(epoch)
    return loader(dataset, seed, sampler=sampler, batch_size=batch_size)


def rows(batch) -> dict:
    return {
        label: zlib.crc32(image.numpy().tobytes()) for image, label in zip(batch[0], batch[1].tolist(), strict=True)
    }


def some(one, count):
    """Samples of its next batches, and its state then."""
    found: list = []
    for batch in one:
        found += rows(batch).items()
        count -= 1
        if not count:
            break
    return found, one.state_dict()


def test_pixels_do_not_depend_on_the_number_of_ranks():
    alone = dict(some(ranked(0, 1), 0)[0])
    assert len(alone) == COUNT
    for world in (2, 3, 5):
        for rank in range(world):
            for index, pixels in some(ranked(rank, world), 0)[0][: COUNT // world]:
                assert pixels == alone[index]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("one_state", [False, True])
def test_other_numbers_of_ranks(one_state, drop_last):
    whole = dict(some(ranked(0, 1), 0)[0])
    had: list = []
    state = None
    for world, batches in ((2, 2), (1, 1), (3, 0)):
        states = []
        for rank in range(world):
            one = ranked(rank, world, seed=rank if state else 0, drop_last=drop_last)
            if state is not None:
                one.load_state_dict(saved(state))
            found, mine = some(one, batches)
            had += found
            states.append(mine)
        state = states[-1] if one_state else merge_states(states[::-1])
    # 24 samples: 2 x 6, then 3, and 9 are left for three ranks
    assert sorted(index for index, _ in had) == list(range(COUNT)) and dict(had) == whole


@pytest.mark.parametrize("num_workers", [0, 2])
def test_other_numbers_of_ranks_where_torchvision_does_the_work(num_workers):
    def make(rank, world):
        return loader(Own(), sampler=DistributedSampler(Own(), world, rank), batch_size=3, num_workers=num_workers)

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


def test_ranks_repeat_samples_at_the_end_alone():
    _, state = some(ranked(0, 1), 1)
    had = [index for rank in range(4) for index, _ in _rest(ranked(rank, 4, 8), state)]
    assert len(had) == 24 and len(set(had)) >= 21


def _rest(one, state):
    one.load_state_dict(state)
    return some(one, 0)[0]


def test_the_same_ranks_go_on():
    whole = [some(ranked(rank, 2), 0)[0] for rank in range(2)]
    states = [some(ranked(rank, 2), 2)[1] for rank in range(2)]
    for rank in range(2):
        assert _rest(ranked(rank, 2, 5), merge_states(states)) == whole[rank][6:]
        assert _rest(ranked(rank, 2, 5), states[0]) == whole[rank][6:]


def test_states_that_do_not_belong_together():
    states = [some(ranked(rank, 2), 1 + rank)[1] for rank in range(2)]
    said = (
        r"same batch \(after batch 0 of epoch 0: rank 0; after batch 1 of epoch 0: rank 1\): take their .* on all ranks"
    )
    with pytest.raises(ValueError, match=said):
        merge_states(states)
    assert [_rest(ranked(rank, 2, 5), states[1]) for rank in range(2)] == [
        some(ranked(rank, 2), 0)[0][6:] for rank in range(2)
    ]  # one for all, as it says
    places = [some(ranked(rank, 4), count) for rank, count in enumerate((1, 1, 0, 1))]
    places[3] = None, ranked(3, 4).state_dict()
    said = r"\(after batch 0 of epoch 0: rank 0, 1; at the end of epoch 0: rank 2; before the first epoch: rank 3\)"
    with pytest.raises(ValueError, match=said):
        merge_states([state for _, state in places])
    for wrong in ([{}, states[0]], [merge_states([one.state_dict()]) for one in [ranked(0, 1)]]):
        with pytest.raises(ValueError, match=r"of each rank, not a merged state"):
            merge_states(wrong)
    with pytest.raises(ValueError, match="of each rank once"):
        merge_states(states[1:])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_which_nothing_is_left_are_not_counted(tmp_path, num_workers, fallback):
    root = make_folder(tmp_path / "bad", classes=2, per_class=9, special=False, low=30, high=40)
    for index in (3, 4, 5, 9, 10, 11, 15, 16, 17):
        (root / f"class_{'ab'[index // 9]}" / f"{index % 9:02d}.jpg").write_bytes(b"no image")

    def make():
        transform = T.Compose([T.CenterCrop(16), T.ToTensor()]) if fallback else RANDOM  # a fallback draws as it likes
        dataset = DALIImageFolder(root, transform, return_index=True)
        if fallback:
            dataset.loader = lambda path: Image.fromarray(np.asarray(Image.open(path).convert("RGB")))
        return loader(dataset, batch_size=3, on_error="skip", num_workers=num_workers)

    one, states = make(), []
    whole = epochs(one, states=states)
    assert [len(batches) for batches in whole] == [3, 3]
    other = make()
    other.load_state_dict(saved(states[2][2]))  # within the first epoch
    assert epochs(other) == [whole[0][2:], whole[1]]


@pytest.mark.parametrize("wrap", [lambda dataset: dataset, Wrapped], ids=["DALI", "torch's own"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_that_failed_comes_again_unless_the_loop_went_on(tmp_path, wrap, num_workers):
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
    assert next(iterator)[2].tolist() == [6, 7, 8]  # as torch's iterator does
    states.append(one.state_dict())
    file.write_bytes(whole)
    for state, rest in zip(states, ([[3, 4, 5], [6, 7, 8], [9, 10, 11]], [[9, 10, 11]]), strict=True):
        other = make()
        other.load_state_dict(saved(state))
        assert [batch[2].tolist() for batch in other] == rest


def test_a_copy_begins_its_own_epochs():
    one = loader(arrays(), shuffle=True)
    list(one)
    assert copy.copy(one).state_dict()["begun"] == 0


def test_what_is_no_state_is_shown(folder):
    for wrong, said in (({"model": 1}, "dali_compat: {'model': 1}"), ({"version": 99}, "its version is 99, not ")):
        with pytest.raises(ValueError, match=said):
            loader(folder).load_state_dict(wrong)

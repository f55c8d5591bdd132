"""Going on from the checkpoints of frameworks, and torchdata's StatefulDataLoader beside ours."""

import itertools
import warnings
import zlib

import pytest
import torch
from torchvision import transforms as T

from contract.both import RANDOM, ours
from dali_compat import DALIImageFolder, DataLoader


class Crash(Exception):
    """The training ends here."""


@pytest.fixture(scope="module")
def lightning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("lightning.pytorch")


def training(image_root, **options) -> DataLoader:
    """Four batches an epoch."""
    return ours(DALIImageFolder(image_root, RANDOM, return_index=True), 6, shuffle=True, device="cpu", **options)


def seen_of(batch):
    return batch[2].tolist(), zlib.crc32(batch[0].numpy().tobytes())


def assert_goes_on(train, crash_at):
    """A training that crashes before that step, and begins again with another seed, sees what it would have seen."""
    whole, seen = [], []
    train(whole)
    with pytest.raises(Crash):
        train(seen, crash_at)
    train(seen, seed=5)
    assert seen == whole


# ---- Lightning


def _fit(lightning, image_root, place, seen, crash_at=None, checkpoint=None, each_step=True, **options):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(3 * 16 * 16, 3))

        def training_step(self, batch, number):
            if len(seen) == crash_at:
                raise Crash
            seen.append(seen_of(batch))
            return torch.nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

        def on_load_checkpoint(self, checkpoint):  # as docs/resume.md says
            (state,) = checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]
            loader.load_state_dict(state)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    loader = training(image_root, **options)
    lightning.seed_everything(0 if checkpoint is None else 9, verbose=False)
    saving = lightning.callbacks.ModelCheckpoint(
        place, every_n_train_steps=1 if each_step else None, save_last=True, save_top_k=-1
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=3,
        logger=False,
        callbacks=[saving],
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=place,
    )
    module = Module()
    if each_step:
        del Module.on_load_checkpoint
    trainer.fit(module, loader, ckpt_path=checkpoint)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "crash_at, each_step, num_workers", [(2, True, 0), (4, True, 0), (5, True, 2), (8, True, 2), (6, False, 0)]
)
def test_lightning_goes_on_from_its_checkpoint(lightning, image_root, tmp_path, crash_at, each_step, num_workers):
    whole, seen = [], []
    _fit(lightning, image_root, tmp_path / "whole", whole, num_workers=num_workers)
    assert len(whole) == 12
    with pytest.raises(Crash):
        _fit(lightning, image_root, tmp_path / "crash", seen, crash_at, None, each_step, num_workers=num_workers)
    if not each_step:
        del seen[4:]  # the checkpoint is that of the epoch's end
    last = tmp_path / "crash" / "last.ckpt"
    _fit(lightning, image_root, tmp_path / "crash", seen, None, last, each_step, num_workers=num_workers)
    assert seen == whole


# ---- Accelerate


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("crash_at", [1, 4, 6])
def test_accelerate_goes_on_from_its_checkpoint(image_root, tmp_path, crash_at):
    accelerate = pytest.importorskip("accelerate")

    def train(seen, crash_at=None, seed=0):
        torch.manual_seed(seed)
        accelerator = accelerate.Accelerator(cpu=True)
        model = accelerator.prepare(torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(3 * 16 * 16, 3)))
        loader = training(image_root)
        accelerator.register_for_checkpointing(loader)
        if (tmp_path / "state").exists():
            accelerator.load_state(tmp_path / "state")
        while len(seen) < 12:
            for batch in loader:
                if len(seen) == crash_at:
                    raise Crash
                model(batch[0].flatten(1))
                seen.append(seen_of(batch))
                if crash_at is not None:
                    accelerator.save_state(tmp_path / "state")

    assert_goes_on(train, crash_at)


# ---- Ignite


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("crash_at", [1, 6])
def test_ignite_goes_on_from_its_checkpoint(image_root, tmp_path, crash_at):
    engine = pytest.importorskip("ignite.engine")
    handlers = pytest.importorskip("ignite.handlers")

    def train(seen, crash_at=None, seed=0):
        torch.manual_seed(seed)

        def step(trainer, batch):
            if len(seen) == crash_at:
                raise Crash
            seen.append(seen_of(batch))
            torch.rand(3)

        trainer, loader = engine.Engine(step), training(image_root)
        parts = {"trainer": trainer, "loader": loader}
        saver = handlers.Checkpoint(
            parts, handlers.DiskSaver(tmp_path, require_empty=False), filename_pattern="last.pt"
        )
        if (tmp_path / "last.pt").exists():
            handlers.Checkpoint.load_objects(parts, torch.load(tmp_path / "last.pt"))
        if crash_at is not None:
            trainer.add_event_handler(engine.Events.ITERATION_COMPLETED, saver)
        trainer.run(loader, max_epochs=3)

    assert_goes_on(train, crash_at)


# ---- torchdata


@pytest.fixture(scope="module")
def theirs():
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader


def _indices(batches) -> list[list[int]]:
    return [batch[2].tolist() for batch in batches]


def _within(make):
    """A state taken after two batches of the first epoch, and two of the second."""
    one, found = make(), []
    for _ in range(2):
        for number, _ in enumerate(one, 1):
            if number == 2:
                found.append(one.state_dict())
    return [_gone_on(make, state) for state in found]


def _gone_on(make, state):
    one = make()
    one.load_state_dict(state)
    return [_indices(one), _indices(one)]


def _at_the_last_batch(make):
    one = make()
    state = [one.state_dict() for _ in one][-1]
    return _gone_on(make, state)


def _at_the_end(make):
    one = make()
    list(one)
    return _gone_on(make, one.state_dict())


def _before_the_first(make):
    return _gone_on(make, make().state_dict())


def _after_a_break(make):
    one = make()
    for number, _ in enumerate(one):
        if number == 1:
            break
    return _gone_on(make, one.state_dict())


def _not_used_yet(make):
    one = make()
    next(iter(one))
    state, one = one.state_dict(), make()
    one.load_state_dict(state)
    return _gone_on(make, one.state_dict())


def _empty(make):
    return _gone_on(make, {})


def _into_the_same_loader(make):
    one = make()
    states = [one.state_dict() for _ in one]
    one.load_state_dict(states[1])
    return [_indices(one), _indices(one)]


def _of_an_iterator_that_lives(make):
    one = make()
    iterator = iter(one)
    had = _indices(itertools.islice(iterator, 2))
    state = one.state_dict()
    return [had, _indices(iterator), *_gone_on(make, state)]


SCENARIOS = [
    *(_within, _at_the_last_batch, _at_the_end, _before_the_first, _after_a_break, _not_used_yet, _empty),
    *(_into_the_same_loader, _of_an_iterator_that_lives),
]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__[1:])
def test_the_contract_of_torchdata(theirs, image_root, scenario, options):
    dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(8), T.PILToTensor()]), return_index=True)
    mine = scenario(lambda: ours(dataset, 5, device="cpu", **options))
    assert mine == scenario(lambda: theirs(dataset, 5, **options))

"""Resuming from the checkpoints of frameworks, and a comparison with torchdata's StatefulDataLoader."""

import itertools
import warnings
import zlib

import pytest
import torch
from helpers import transformers_module
from torch.utils import data
from torchvision import transforms as T

from contract.both import RANDOM, ours
from dali_compat import DALIImageFolder, DataLoader, install


class SimulatedCrash(Exception):
    """A crash of the training, raised by the test."""


@pytest.fixture(scope="module")
def lightning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("lightning.pytorch")


def training_loader(image_root, **options) -> DataLoader:
    """Return a loader with four batches per epoch."""
    return ours(DALIImageFolder(image_root, RANDOM, return_index=True), 6, shuffle=True, device="cpu", **options)


def fingerprint(batch):
    return batch[2].tolist(), zlib.crc32(batch[0].numpy().tobytes())


def assert_resumes(train, crash_at):
    """Compare a training that crashes before a step and resumes with another seed to one without a crash."""
    whole, seen = [], []
    train(whole)
    with pytest.raises(SimulatedCrash):
        train(seen, crash_at)
    train(seen, seed=5)
    assert seen == whole


# ---- Lightning


def _one_loader(image_root, **options):
    return {"one": training_loader(image_root, **options)}


def _fit(
    lightning, image_root, place, seen, crash_at=None, checkpoint=None, each_step=True, hook=False, make=_one_loader,
    limit=1.0, reload=0, **options,
):  # fmt: skip
    class Module(lightning.LightningModule):
        def train_dataloader(self):
            return make(image_root, **options)

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(3 * 16 * 16, 3))

        def training_step(self, batch, number):
            if len(seen) == crash_at:
                raise SimulatedCrash
            seen.append([fingerprint(one) for one in batch.values()])
            images, labels, *_ = next(iter(batch.values()))
            return torch.nn.functional.cross_entropy(self.layer(images.flatten(1)), labels)

        def on_load_checkpoint(self, checkpoint):  # as in docs/resume.md
            states = checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]
            for loader, state in zip(loaders.values(), states, strict=True):
                loader.load_state_dict(state)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    loaders = None if reload else make(image_root, **options)
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
        limit_train_batches=limit,
        reload_dataloaders_every_n_epochs=reload,
    )
    module = Module()
    if each_step and not hook:
        del Module.on_load_checkpoint
    trainer.fit(module, loaders, ckpt_path=checkpoint)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "crash_at, each_step, num_workers", [(2, True, 0), (4, True, 0), (5, True, 2), (8, True, 2), (6, False, 0)]
)
def test_lightning_resumes_from_its_checkpoint(lightning, image_root, tmp_path, crash_at, each_step, num_workers):
    whole, seen = [], []
    _fit(lightning, image_root, tmp_path / "whole", whole, num_workers=num_workers)
    assert len(whole) == 12
    with pytest.raises(SimulatedCrash):
        _fit(lightning, image_root, tmp_path / "crash", seen, crash_at, None, each_step, num_workers=num_workers)
    if not each_step:
        del seen[4:]  # the checkpoint was written at the end of the epoch
    last = tmp_path / "crash" / "last.ckpt"
    _fit(lightning, image_root, tmp_path / "crash", seen, None, last, each_step, num_workers=num_workers)
    assert seen == whole


def _one_loader_with_generator(image_root, **options):
    return _one_loader(image_root, generator=torch.Generator().manual_seed(3), **options)


RELOADING = {
    "each": {},
    "each, of workers": {"num_workers": 1},
    "each, with a generator": {"make": _one_loader_with_generator},
    "each, of persistent workers": {"num_workers": 1, "persistent_workers": True},
}


@pytest.mark.alike
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", RELOADING)
def test_lightning_that_reloads_dataloaders_resumes_within_an_epoch(lightning, image_root, tmp_path, case):
    whole: list = []
    _fit(lightning, image_root, tmp_path / "whole", whole, reload=1, **RELOADING[case])
    assert len(whole) == 12
    for crash_at in (2, 7):
        place, seen = tmp_path / str(crash_at), []
        with pytest.raises(SimulatedCrash):
            _fit(lightning, image_root, place, seen, crash_at, reload=1, **RELOADING[case])
        _fit(lightning, image_root, place, seen, None, place / "last.ckpt", reload=1, **RELOADING[case])
        assert seen == whole, crash_at


def _two_loaders(image_root, **options):
    dataset = DALIImageFolder(image_root, RANDOM, return_index=True)
    return {"one": training_loader(image_root), "shorter": ours(dataset, 10, shuffle=True, device="cpu")}


EPOCH_LENGTHS = {
    "limit_train_batches": {"limit": 3},
    "a share of batches": {"limit": 0.5},
    "two loaders": {"make": _two_loaders},
}


@pytest.mark.alike
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", EPOCH_LENGTHS)
def test_lightning_resumes_if_epochs_are_limited_or_loaders_combined(lightning, image_root, tmp_path, case):
    """These epochs may end before the epoch of a loader."""
    whole: list = []
    _fit(lightning, image_root, tmp_path / "whole", whole, **EPOCH_LENGTHS[case])
    assert len(whole) in (12, 9, 6)
    for crash_at in (1, len(whole) // 3, len(whole) // 3 + 1):
        seen, place = [], tmp_path / str(crash_at)
        with pytest.raises(SimulatedCrash):
            _fit(lightning, image_root, place, seen, crash_at, **EPOCH_LENGTHS[case])
        _fit(lightning, image_root, place, seen, None, place / "last.ckpt", **EPOCH_LENGTHS[case])
        assert seen == whole, crash_at


@pytest.mark.filterwarnings("ignore")
def test_lightning_resumes_twice(lightning, image_root, tmp_path):
    """Lightning does not load the loader's state itself from a checkpoint written after the end of an epoch."""
    whole, seen = [], []
    _fit(lightning, image_root, tmp_path / "whole", whole)
    last = tmp_path / "crash" / "last.ckpt"
    for crash_at, checkpoint in ((4, None), (6, last)):
        with pytest.raises(SimulatedCrash):
            _fit(lightning, image_root, tmp_path / "crash", seen, crash_at, checkpoint, hook=True)
    _fit(lightning, image_root, tmp_path / "crash", seen, None, last, hook=True)
    assert seen == whole


# ---- Accelerate


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("crash_at", [1, 4, 6])
def test_accelerate_resumes_from_its_checkpoint(image_root, tmp_path, crash_at, is_prepared):
    """A prepared loader fetches one batch ahead and restores generators itself."""
    accelerate = pytest.importorskip("accelerate")

    def train(seen, crash_at=None, seed=0):
        torch.manual_seed(seed)
        accelerator = accelerate.Accelerator(cpu=True)
        model = accelerator.prepare(torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(3 * 16 * 16, 3)))
        if is_prepared:
            dataset = DALIImageFolder(image_root, RANDOM, return_index=True)
            with install(device="cpu", fallback="error"):
                loader = accelerator.prepare(data.DataLoader(dataset, 6, shuffle=True))
        else:
            loader = training_loader(image_root)
        accelerator.register_for_checkpointing(loader)
        if (tmp_path / "state").exists():
            accelerator.load_state(tmp_path / "state")
        while len(seen) < 12:
            for batch in loader:
                if len(seen) == crash_at:
                    raise SimulatedCrash
                model(batch[0].flatten(1))
                seen.append(fingerprint(batch))
                if crash_at is not None:
                    accelerator.save_state(tmp_path / "state")

    assert_resumes(train, crash_at)


def test_skip_first_batches_raises_for_a_resumed_loader(image_root):
    accelerate = pytest.importorskip("accelerate")
    dataset = DALIImageFolder(image_root, RANDOM, return_index=True)
    with install(device="cpu", fallback="error"):
        accelerator = accelerate.Accelerator(cpu=True)
        prepared = accelerator.prepare(data.DataLoader(dataset, 6))
        next(iter(prepared))
        assert len(list(accelerate.skip_first_batches(prepared, 1))) == 3
        prepared.load_state_dict(prepared.state_dict())
        with pytest.raises(RuntimeError, match=r"resumes from its state, so skip_first_batches.*ignore_data_skip=True"):
            accelerate.skip_first_batches(prepared, 1)
        assert len(list(prepared)) == 3


# ---- HF Trainer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("crash_at, num_workers", [(2, 0), (4, 0), (6, 2)])
def test_hf_trainer_resumes_from_its_checkpoint(image_root, tmp_path, crash_at, num_workers):
    transformers = transformers_module()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(3 * 16 * 16, 3))

        def forward(self, images, labels, indices):
            if len(seen) == current_crash[0]:
                raise SimulatedCrash
            seen.append(fingerprint((images, labels, indices)))
            return {"loss": torch.nn.functional.cross_entropy(self.layer(images.flatten(1)), labels)}

    class LoaderState(transformers.TrainerCallback):  # as in docs/resume.md
        def on_save(self, args, state, control, train_dataloader, **kwargs):
            file = f"{args.output_dir}/checkpoint-{state.global_step}/loader.pt"
            torch.save(train_dataloader.state_dict(), file)

        def on_train_begin(self, args, state, control, train_dataloader, **kwargs):
            if state.global_step:
                file = f"{args.output_dir}/checkpoint-{state.global_step}/loader.pt"
                train_dataloader.load_state_dict(torch.load(file))

    def collate(samples):
        images, labels, indices = zip(*samples, strict=True)
        return {"images": torch.stack(images), "labels": torch.tensor(labels), "indices": torch.tensor(indices)}

    def train(place, crash_at=None, last=None, skip=True):
        current_crash[:] = [crash_at]
        torch.manual_seed(0 if last is None else 5)
        arguments = transformers.TrainingArguments(
            str(place), per_device_train_batch_size=6, num_train_epochs=3, report_to=[], use_cpu=True,
            save_strategy="steps", save_steps=1, remove_unused_columns=False, disable_tqdm=True,
            dataloader_num_workers=num_workers, ignore_data_skip=skip,
        )  # fmt: skip
        dataset = DALIImageFolder(image_root, RANDOM, return_index=True)
        with install(device="cpu", fallback="error"):
            trainer = transformers.Trainer(
                Model(), arguments, train_dataset=dataset, data_collator=collate, callbacks=[LoaderState()]
            )
            trainer.train(resume_from_checkpoint=last)

    seen: list = []
    current_crash: list = []
    train(tmp_path / "whole")
    whole = list(seen)
    seen.clear()
    assert len(whole) == 12
    with pytest.raises(SimulatedCrash):
        train(tmp_path / "crash", crash_at)
    last = str(tmp_path / "crash" / f"checkpoint-{crash_at}")
    if crash_at != 4:  # within an epoch
        with pytest.raises(RuntimeError, match="ignore_data_skip=True"):
            train(tmp_path / "crash", None, last, skip=False)
    train(tmp_path / "crash", None, last)
    assert seen == whole


# ---- Ignite


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("crash_at", [1, 6])
def test_ignite_resumes_from_its_checkpoint(image_root, tmp_path, crash_at):
    engine = pytest.importorskip("ignite.engine")
    handlers = pytest.importorskip("ignite.handlers")

    def train(seen, crash_at=None, seed=0):
        torch.manual_seed(seed)

        def step(trainer, batch):
            if len(seen) == crash_at:
                raise SimulatedCrash
            seen.append(fingerprint(batch))
            torch.rand(3)

        trainer, loader = engine.Engine(step), training_loader(image_root)
        parts = {"trainer": trainer, "loader": loader}
        saver = handlers.Checkpoint(
            parts, handlers.DiskSaver(tmp_path, require_empty=False), filename_pattern="last.pt"
        )
        if (tmp_path / "last.pt").exists():
            handlers.Checkpoint.load_objects(parts, torch.load(tmp_path / "last.pt"))
        if crash_at is not None:
            trainer.add_event_handler(engine.Events.ITERATION_COMPLETED, saver)
        trainer.run(loader, max_epochs=3)

    assert_resumes(train, crash_at)


# ---- torchdata


@pytest.fixture(scope="module")
def theirs():
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader


def _indices(batches) -> list[list[int]]:
    return [batch[2].tolist() for batch in batches]


def _within_epochs(make):
    """Resume from states after two batches of the first and of the second epoch."""
    one, found = make(), []
    for _ in range(2):
        for number, _ in enumerate(one, 1):
            if number == 2:
                found.append(one.state_dict())
    return [_resumed(make, state) for state in found]


def _resumed(make, state):
    one = make()
    one.load_state_dict(state)
    return [_indices(one), _indices(one)]


def _at_the_last_batch(make):
    one = make()
    state = [one.state_dict() for _ in one][-1]
    return _resumed(make, state)


def _at_the_end(make):
    one = make()
    list(one)
    return _resumed(make, one.state_dict())


def _before_the_first(make):
    return _resumed(make, make().state_dict())


def _after_a_break(make):
    one = make()
    for number, _ in enumerate(one):
        if number == 1:
            break
    return _resumed(make, one.state_dict())


def _loaded_but_not_used(make):
    one = make()
    next(iter(one))
    state, one = one.state_dict(), make()
    one.load_state_dict(state)
    return _resumed(make, one.state_dict())


def _empty(make):
    return _resumed(make, {})


def _into_the_same_loader(make):
    one = make()
    states = [one.state_dict() for _ in one]
    one.load_state_dict(states[1])
    return [_indices(one), _indices(one)]


def _of_a_running_iterator(make):
    one = make()
    iterator = iter(one)
    had = _indices(itertools.islice(iterator, 2))
    state = one.state_dict()
    return [had, _indices(iterator), *_resumed(make, state)]


def _saved_twice(make):
    one = make()
    iterator = iter(one)
    next(iterator)
    states = [one.state_dict(), one.state_dict()]
    return [*(_resumed(make, state) for state in states), _indices(iterator)]


def _into_a_loader_with_a_running_iterator(make):
    """The old iterator remains in use."""
    one = make()
    iterator = iter(one)
    next(iterator)
    state = one.state_dict()
    next(iterator)
    one.load_state_dict(state)
    return [_indices(iterator), _indices(one), _indices(one)]


def _loaded_twice(make):
    one = make()
    states = [one.state_dict() for _ in one]
    other = make()
    other.load_state_dict(states[2])
    other.load_state_dict(states[0])
    return [_indices(other), _indices(other)]


def _of_an_epoch_after_a_break(make):
    one = make()
    for _ in one:
        break
    return [_indices(one), *_resumed(make, one.state_dict())]


def _of_an_unused_iterator(make):
    one = make()
    list(one)
    iter(one)
    return _resumed(make, one.state_dict())


def _of_a_loader_that_just_resumed(make):
    one, other = make(), make()
    next(iter(one))
    other.load_state_dict(one.state_dict())
    iterator = iter(other)
    return [_resumed(make, other.state_dict()), _indices(iterator), _resumed(make, other.state_dict())]


def _after_the_end(make):
    one = make()
    iterator = iter(one)
    for _ in range(len(one)):
        next(iterator)
    last = one.state_dict()
    assert next(iterator, None) is None and next(iterator, None) is None
    return [_resumed(make, last), _resumed(make, one.state_dict())]


def _of_two_iterators(make):
    one = make()
    first = iter(one)
    next(first)
    second = iter(one)
    next(second), next(second)
    return _resumed(make, one.state_dict())


def _empty_into_a_loader_with_an_abandoned_epoch(make):
    one = make()
    next(iter(one))
    one.load_state_dict({})
    return [_indices(one), _indices(one)]


SCENARIOS = [
    *(_within_epochs, _at_the_last_batch, _at_the_end, _before_the_first, _after_a_break, _loaded_but_not_used, _empty),
    *(_into_the_same_loader, _of_a_running_iterator, _saved_twice, _into_a_loader_with_a_running_iterator),
    *(_loaded_twice, _of_an_epoch_after_a_break, _of_an_unused_iterator),
    *(_of_a_loader_that_just_resumed, _after_the_end, _of_two_iterators, _empty_into_a_loader_with_an_abandoned_epoch),
]


@pytest.mark.alike
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__[1:])
def test_states_behave_as_with_torchdatas_stateful_data_loader(theirs, image_root, scenario, options):
    dataset = DALIImageFolder(image_root, T.Compose([T.CenterCrop(8), T.PILToTensor()]), return_index=True)
    mine = scenario(lambda: ours(dataset, 5, device="cpu", **options))
    assert mine == scenario(lambda: theirs(dataset, 5, **options))

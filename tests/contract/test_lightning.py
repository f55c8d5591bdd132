"""Changes that Lightning makes to a loader, tested with Lightning."""

import warnings

import pytest
import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from contract.both import OPTIONS, assert_ours, ours, outline, outlines, stock
from dali_compat import DataLoader


class ListSampler:
    """A batch sampler that is no subclass of torch's BatchSampler."""

    def __init__(self, sampler, batch_size, drop_last):
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self):
        return iter(data.BatchSampler(self.sampler, self.batch_size, self.drop_last))

    def __len__(self):
        return -(-len(self.sampler) // self.batch_size)


@pytest.fixture(scope="module")
def lightning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("lightning.pytorch")


def _module(lightning, batches_seen):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3 * 40 * 40, 3)

        def training_step(self, batch, number):
            images, labels, indices = batch
            batches_seen.append(indices.tolist())
            return torch.nn.functional.cross_entropy(self.layer(images.flatten(1) / 255), labels)

        def validation_step(self, batch, number):
            batches_seen.append(("validation", batch[2].tolist()))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    return Module()


@pytest.mark.filterwarnings("ignore")
def test_lightning_fits_with_the_order_of_torchs_loader(lightning, exact_folder, tmp_path):
    runs = []
    for make in (ours, stock):
        batches_seen = []
        lightning.seed_everything(0, verbose=False)
        loader = make(exact_folder, 5, shuffle=True, drop_last=True)
        validation = make(exact_folder, 12)
        trainer = lightning.Trainer(
            accelerator="gpu" if torch.cuda.is_available() else "cpu",
            devices=1,
            max_epochs=2,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            num_sanity_val_steps=1,
            default_root_dir=tmp_path,
        )
        trainer.fit(_module(lightning, batches_seen), loader, validation)
        runs.append(batches_seen)
    assert runs[0] == runs[1] and len(runs[0]) == 1 + 2 * (4 + 2)


def test_lightning_replaces_the_sampler_and_keeps_the_options(lightning, exact_folder):
    from lightning.pytorch.utilities.data import _update_dataloader

    loader = ours(exact_folder, 5, shuffle=True, num_workers=1, prefetch_factor=3, **OPTIONS)
    sampler = DistributedSampler(exact_folder, 2, 1, shuffle=True)
    again = _update_dataloader(loader, sampler)
    assert_ours(again, batch_size=5, num_workers=1, prefetch_factor=3, **OPTIONS)
    assert again.sampler is sampler and again is not loader
    assert outlines(again) == outlines(stock(exact_folder, 5, sampler=DistributedSampler(exact_folder, 2, 1)))


def test_lightning_rebuilds_a_custom_batch_sampler(lightning, exact_folder):
    from lightning.pytorch.utilities.data import _update_dataloader

    loader = ours(exact_folder, batch_sampler=ListSampler(data.SequentialSampler(exact_folder), 4, False))
    again = _update_dataloader(loader, range(6))
    assert_ours(again)
    assert type(again.batch_sampler) is ListSampler and [b[2].tolist() for b in again] == [[0, 1, 2, 3], [4, 5]]


def test_lightning_predicts_with_its_index_batch_sampler(lightning, exact_folder):
    from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper
    from lightning.pytorch.trainer.states import RunningStage
    from lightning.pytorch.utilities.data import _update_dataloader

    again = _update_dataloader(ours(exact_folder, 5), data.SequentialSampler(exact_folder), RunningStage.PREDICTING)
    assert_ours(again)
    assert type(again.batch_sampler) is _IndexBatchSamplerWrapper
    assert [batch[2].tolist() for batch in again] == [list(range(i, min(i + 5, 24))) for i in range(0, 24, 5)]


def test_lightning_recreates_a_subclass_with_its_arguments(lightning, exact_folder):
    """Lightning patches __init__ and __setattr__ in dataloader hooks, and explain() may be called in a hook."""
    from lightning.fabric.utilities.data import _replace_dunder_methods
    from lightning.pytorch.utilities.data import _update_dataloader

    class Mine(DataLoader):
        def __init__(self, folder, size, **kwargs):
            super().__init__(folder, size, **OPTIONS | kwargs)
            self.extra = size

    with _replace_dunder_methods(data.DataLoader, "dataset"):
        loader, plain = Mine(exact_folder, 6), DataLoader(exact_folder, 6, **OPTIONS)
        loader.extra = 7
        assert plain.explain().startswith("DALI")
    for made in (loader, plain):
        again = _update_dataloader(made, range(9))
        assert type(again) is type(made) and [len(batch[0]) for batch in again] == [6, 3]
        assert again.exact and again.memory_format is torch.channels_last
    assert _update_dataloader(loader, range(9)).extra == 7
    assert "__old__init__" not in vars(DataLoader)


def test_lightning_sets_worker_init_fn_and_the_samplers_epoch(lightning, exact_folder):
    from lightning.fabric.utilities.data import _auto_add_worker_init_fn, _set_sampler_epoch

    loader = ours(exact_folder, 5, sampler=DistributedSampler(exact_folder, 2, 0), num_workers=1)
    _auto_add_worker_init_fn(loader, 0)
    assert loader.explain().startswith("DALI route")
    runs = []
    for epoch in (0, 3):
        _set_sampler_epoch(loader, epoch)
        runs.append([i for batch in loader for i in batch[2].tolist()])
        expected = DistributedSampler(exact_folder, 2, 0)
        expected.set_epoch(epoch)
        assert runs[-1] == list(expected)
    assert runs[0] != runs[1]


@pytest.mark.parametrize("mode", ["min_size", "max_size", "max_size_cycle", "sequential"])
def test_lightning_combined_loader_gives_torchs_batches(lightning, exact_folder, mode):
    from lightning.pytorch.utilities.combined_loader import CombinedLoader

    runs = []
    for make in (ours, stock):
        combined = CombinedLoader({"a": make(exact_folder, 5), "b": make(exact_folder, 12)}, mode)
        runs.append([[outline(batch) for batch, _, _ in combined] for _ in range(2)])
        combined.reset()
    assert runs[0] == runs[1]

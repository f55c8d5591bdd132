"""Loaders made or changed by frameworks during install()."""

import json
import types
import warnings

import programs
import pytest
import torch
from helpers import transformers_module
from torch.utils import data

import dali_compat
from contract.both import EXACT, REPOSITORY, SMALL, assert_same_pixels, outlines, pixels, said, stock
from dali_compat import DALIImageFolder, DataLoader, FallbackWarning, install, uninstall
from dali_compat.runtime import dataset_base


@pytest.fixture(autouse=True)
def install_during_test():
    install(device="cpu")
    yield
    uninstall()


def is_ours(loader) -> bool:
    return isinstance(loader, DataLoader) and loader.explain().startswith("DALI route")


# ---- Accelerate


@pytest.fixture
def accelerate():
    return pytest.importorskip("accelerate")


def test_accelerate_prepares_a_loader_of_ours(accelerate, exact_folder):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    prepared = accelerator.prepare(data.DataLoader(exact_folder, 5, shuffle=True, drop_last=True))
    assert type(prepared) is accelerate.data_loader.DataLoaderShard and is_ours(prepared)
    ends, syncs = [], []
    for _ in prepared:
        with accelerator.accumulate(torch.nn.Identity()):
            ends.append(prepared.end_of_dataloader)
            syncs.append(accelerator.sync_gradients)
    assert ends == [False, False, False, True] and syncs == [False, True, False, True]
    assert prepared.stats().images == 20 and len(prepared) == 4


def test_accelerate_keeps_the_options_of_a_loader(accelerate, exact_folder):
    accelerator = accelerate.Accelerator(cpu=True)
    loader = DataLoader(exact_folder, 5, exact=True, on_error="skip", memory_format=torch.channels_last)
    prepared = accelerator.prepare(loader)
    skipped = accelerate.skip_first_batches(prepared, 3)
    for made in (prepared, skipped):
        assert is_ours(made) and made.exact and made.on_error == "skip" and made.memory_format is torch.channels_last
        assert made.base_dataloader.device == accelerator.device  # not the loader's None
    assert [batch[2].tolist() for batch in skipped] == [list(range(15, 20)), list(range(20, 24))]


def test_accelerates_seeded_sampler_gives_torchs_order(accelerate, exact_folder):
    settings = accelerate.DataLoaderConfiguration(use_seedable_sampler=True)
    orders = []
    for fallback in (uninstall, lambda: install(device="cpu")):
        fallback()
        accelerate.utils.set_seed(3)
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=settings)
        prepared = accelerator.prepare_data_loader(data.DataLoader(exact_folder, 5, shuffle=True))
        orders.append([[batch[2].tolist() for batch in prepared] for _ in range(2)])
    assert orders[0] == orders[1] and orders[0][0] != orders[0][1]


def test_accelerates_dispatch_batches_falls_back_with_a_warning(accelerate, exact_folder):
    settings = accelerate.DataLoaderConfiguration(dispatch_batches=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=settings)
    loader = data.DataLoader(exact_folder, 5)
    with pytest.warns(FallbackWarning, match="dispatch_batches=True") as warned:
        prepared = accelerator.prepare(loader)
    assert type(prepared.base_dataloader) is data.DataLoader and warned[0].filename == __file__
    assert_same_pixels(pixels(prepared), pixels(loader))
    with install(fallback="error"), pytest.raises(RuntimeError, match="dispatch_batches=True"):
        accelerator.prepare(data.DataLoader(exact_folder, 5))


ACCELERATED = """
import json, sys
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader
from torchvision import transforms as T
import dali_compat
from dali_compat import DALIImageFolder

folder = DALIImageFolder(sys.argv[1], T.Compose([T.CenterCrop(40), T.PILToTensor()]), return_index=True)

def epochs(**settings):
    torch.manual_seed(5)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**settings))
    prepared = accelerator.prepare(DataLoader(folder, 4 if "split_batches" in settings else 5, shuffle=True))
    taken = [[batch[2].tolist() for batch in prepared] for _ in range(2)]
    even = settings.get("even_batches", True)  # elsewhere one process would wait for the other
    gathered = [len(accelerator.gather_for_metrics(batch[1])) for batch in prepared] if even else []
    return taken, gathered, isinstance(prepared, dali_compat.DataLoader)

cases = {}, {"even_batches": False}, {"split_batches": True}, {"use_seedable_sampler": True}
ours = [epochs(**case) for case in cases]
dali_compat.uninstall()
theirs = [epochs(**case) for case in cases]
same = [a[:2] == b[:2] and (a[2], b[2]) == (True, False) for a, b in zip(ours, theirs)]
with open(f"{Accelerator(cpu=True).process_index}.json", "w") as file:
    json.dump([same, ours[0][0][0], ours[0][1]], file)
"""


def test_accelerate_shards_a_loader_across_processes_as_torchs(accelerate, image_root, tmp_path, monkeypatch):
    """Run under torchrun and compare order, shards and gathered samples."""
    (tmp_path / "train.py").write_text(ACCELERATED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said(programs.ranks(2, "-m", "dali_compat", "run", "--fallback", "error", "train.py", image_root))
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first[0] == second[0] == [True] * 4
    assert {i for batch in first[1] + second[1] for i in batch} == set(range(24))  # even_batches repeats some samples
    assert first[2] == second[2] and sum(first[2]) == 24


# ---- HF Trainer


def test_hf_trainer_trains_with_the_same_batches_as_torchs(image_root, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = transformers_module()
    batches_seen = []

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, pixels, labels):
            batches_seen.append((tuple(pixels.shape), labels.tolist()))
            return {"loss": torch.nn.functional.cross_entropy(self.layer(pixels.float().mean((2, 3))), labels)}

    def collate(samples):
        return {"pixels": torch.stack([image for image, _ in samples]), "labels": torch.tensor([t for _, t in samples])}

    runs = []
    for fallback in ("error", None):
        install(device="cpu", fallback=fallback) if fallback else uninstall()
        arguments = transformers.TrainingArguments(
            str(tmp_path), per_device_train_batch_size=5, num_train_epochs=1, report_to=[], use_cpu=True, seed=1,
            save_strategy="no", remove_unused_columns=False, dataloader_num_workers=1, disable_tqdm=True,
        )  # fmt: skip
        trainer = transformers.Trainer(
            Model(), arguments, train_dataset=DALIImageFolder(image_root, EXACT), data_collator=collate
        )
        assert is_ours(trainer.get_train_dataloader()) is (fallback == "error")
        batches_seen.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.train()
        runs.append(list(batches_seen))
    assert runs[0] == runs[1] and len(runs[0]) == 5


# ---- Ignite, Ray Train, torchdata, Lightning


def test_ignites_auto_dataloader_gives_our_loader(exact_folder):
    idist = pytest.importorskip("ignite.distributed")
    loader = idist.auto_dataloader(exact_folder, batch_size=5, shuffle=True, num_workers=1)
    assert is_ours(loader)
    assert outlines(loader) == outlines(stock(exact_folder, batch_size=5, shuffle=True, num_workers=1))


@pytest.mark.filterwarnings("ignore")
def test_ray_train_prepares_and_shards_a_loader_of_ours(image_root, monkeypatch):
    """Call the function that a worker calls; tests/examples uses a cluster."""
    prepare = pytest.importorskip("ray.train.torch").prepare_data_loader
    install(device="cpu", fallback="error")
    folder = DALIImageFolder(image_root, SMALL, return_index=True)
    for rank in 0, 1:
        context = types.SimpleNamespace(get_world_size=lambda: 2, get_world_rank=lambda: rank)
        monkeypatch.setattr("ray.train.get_context", lambda: context)
        monkeypatch.setattr("ray.train.torch.get_device", lambda: torch.device("cpu"))
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        prepared = prepare(DataLoader(folder, 4, exact=True, on_error="skip"))
        inner = prepared._dataloader
        assert is_ours(inner)
        assert [index for batch in prepared for index in batch[2].tolist()] == list(range(rank, 24, 2))
        assert (inner.exact, inner.on_error, inner.stats().images) == (True, "skip", 12)


def test_torchdatas_stateful_loader_stays_torchs_and_warns(image_root):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    dataset_base._warned[0] = 0
    loader = torchdata.StatefulDataLoader(DALIImageFolder(image_root, SMALL), 5)
    with pytest.warns(FallbackWarning, match="torch's own loader reads DALIImageFolder"):
        assert len(list(loader)) == 5
    assert not isinstance(loader, DataLoader)


def test_lightning_recreates_a_loader_with_the_installed_options(exact_folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning = pytest.importorskip("lightning.pytorch.utilities.data")
    install(device="cpu", exact=True)
    loader = data.DataLoader(exact_folder, 5)
    again = lightning._update_dataloader(loader, data.SequentialSampler(exact_folder))
    assert isinstance(again, dali_compat.DataLoader) and again is not loader and again.exact
    assert outlines(again) == outlines(loader)


@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_with_loaders_made_in_a_hook(exact_folder, tmp_path):
    """Lightning wraps constructors in the hook, and recreates the loader for overfit_batches."""
    lightning = pytest.importorskip("lightning.pytorch")
    batches_seen, kinds = [], []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def train_dataloader(self):
            return data.DataLoader(exact_folder, 5, shuffle=True)

        def training_step(self, batch, number):
            kinds.append(is_ours(self.trainer.train_dataloader) and self.trainer.train_dataloader.exact)
            batches_seen.append(batch[2].tolist())
            return torch.nn.functional.cross_entropy(self.layer(batch[0].float().mean((2, 3))), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    install(device="cpu", exact=True)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=2, overfit_batches=2, default_root_dir=tmp_path, **quiet)
    trainer.fit(Module())
    assert batches_seen == 2 * [list(range(5)), list(range(5, 10))] and kinds == [True] * 4

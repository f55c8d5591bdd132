"""Changes that frameworks make to a loader, tested with the frameworks that are installed."""

import copy
import importlib
import inspect
import sys
import warnings

import pytest
import torch
from torch.utils import data
from torchvision import transforms as T

from contract.both import EXACT, OPTIONS, SMALL, assert_ours, assert_same_pixels, ours, outlines, pixels, stock
from dali_compat import DALIImageFolder, DataLoader, FallbackWarning

# ---- Accelerate


@pytest.fixture(scope="module")
def accelerate():
    return pytest.importorskip("accelerate")


def test_accelerate_prepares_torchs_loader_with_a_warning(accelerate, exact_folder):
    """Accelerate rebuilds each loader as a subclass of torch's DataLoader, without DALI."""
    from accelerate.data_loader import DataLoaderShard

    loader = ours(exact_folder, 5, **OPTIONS | {"fallback": "warn"})
    with pytest.warns(FallbackWarning, match="Accelerate's prepare.*call dali_compat.install"):
        prepared = accelerate.Accelerator(cpu=True).prepare_data_loader(loader)
    assert isinstance(prepared, data.DataLoader)
    assert type(prepared).__mro__[1] is DataLoaderShard or isinstance(prepared, DataLoaderShard)
    assert_same_pixels(pixels(prepared), pixels(stock(exact_folder, 5)))


def test_accelerate_returns_a_prepared_loader_unchanged(accelerate, exact_folder):
    loader = ours(exact_folder, 5)
    loader._is_accelerate_prepared = True
    assert accelerate.Accelerator(cpu=True).prepare_data_loader(loader) is loader
    assert_ours(loader)


def test_accelerate_skips_first_batches(accelerate, exact_folder):
    skipped = accelerate.skip_first_batches(ours(exact_folder, 5), 3)
    assert [batch[2].tolist() for batch in skipped] == [list(range(15, 20)), list(range(20, 24))]


def test_a_sampler_set_in_a_batch_sampler_is_used(exact_folder):
    """Accelerate's set_sampler writes batch_sampler.sampler."""
    loader = ours(exact_folder, 5)
    assert len(list(loader)) == 5
    loader.batch_sampler.sampler = [3, 1, 2]
    assert [batch[2].tolist() for batch in loader] == [[3, 1, 2]]


# ---- Ignite


@pytest.fixture(scope="module")
def ignite():
    return pytest.importorskip("ignite.engine")


def test_ignite_update_dataloader_gives_a_loader_with_the_same_options(ignite, exact_folder):
    from ignite.engine.deterministic import ReproducibleBatchSampler, update_dataloader

    loader = ours(exact_folder, 5, num_workers=1, **OPTIONS)
    again = update_dataloader(loader, ReproducibleBatchSampler(loader.batch_sampler))
    assert_ours(again, num_workers=1, **OPTIONS)
    again.batch_sampler.start_iteration = 3
    assert [batch[2].tolist() for batch in again] == [list(range(15, 20)), list(range(20, 24))]


@pytest.mark.parametrize("epoch_length", [None, 2, 5, 7])
@pytest.mark.parametrize("engine", ["Engine", "DeterministicEngine"])
def test_ignite_epochs_of_any_length_equal_torchs(ignite, exact_folder, engine, epoch_length):
    import ignite.engine as engines

    runs = []
    for make in (ours, stock):
        indices_seen = []
        run = getattr(engines, engine)(lambda e, batch: indices_seen.append(batch[2].tolist()))
        torch.manual_seed(0)
        run.run(make(exact_folder, 5, shuffle=True, num_workers=1), max_epochs=3, epoch_length=epoch_length)
        runs.append(indices_seen)
    assert runs[0] == runs[1] and len(runs[0]) == 3 * (epoch_length or 5)


# ---- timm


@pytest.fixture(scope="module")
def timm_loader():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("timm.data.loader")


def _timm_arguments(timm_loader):
    from functools import partial

    return dict(
        batch_size=5,
        shuffle=False,
        num_workers=2,
        collate_fn=timm_loader.fast_collate,
        pin_memory=False,
        drop_last=False,
        worker_init_fn=partial(timm_loader._worker_init, worker_seeding="all"),
        persistent_workers=True,
    )


def test_timm_create_loader_gives_torchs_batches(timm_loader, image_root):
    """Repeat the steps of create_loader: a late transform, fast_collate, a worker_init_fn and PrefetchLoader."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    runs = []
    for make in (lambda *a, **k: DataLoader(*a, fallback="silent", device="cpu", **k), stock):
        dataset = DALIImageFolder(image_root)
        dataset.transform = EXACT
        loader = make(dataset, **_timm_arguments(timm_loader))
        prefetched = timm_loader.PrefetchLoader(loader, device=device)
        assert len(prefetched) == 5 and prefetched.dataset is dataset and prefetched.sampler is loader.sampler
        assert prefetched.batch_sampler is loader.batch_sampler and not prefetched.mixup_enabled
        runs.append([(images.cpu(), labels.tolist()) for images, labels in prefetched])
    assert [labels for _, labels in runs[0]] == [labels for _, labels in runs[1]]
    assert_same_pixels([images for images, _ in runs[0]], [images for images, _ in runs[1]])


def test_timm_transform_set_after_the_loader_takes_effect(timm_loader, image_root):
    dataset = DALIImageFolder(image_root)
    loader = DataLoader(dataset, device="cpu", fallback="silent", **_timm_arguments(timm_loader))
    dataset.transform = EXACT
    images, _ = next(iter(loader))
    assert images.dtype == torch.uint8 and type(images) is torch.Tensor and loader.explain().startswith("DALI route")


def test_timm_multi_epochs_loader_gives_torchs_batches(timm_loader, folder):
    """Its name-mangled attributes belong to torch's class, not to the subclass."""

    def multi(base):
        class MultiEpochsDataLoader(base):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self._DataLoader__initialized = False
                self.batch_sampler = timm_loader._RepeatSampler(self.batch_sampler)
                self._DataLoader__initialized = True
                self.iterator = super().__iter__()

            def __len__(self):
                return len(self.batch_sampler.sampler)

            def __iter__(self):
                for _ in range(len(self)):
                    yield next(self.iterator)

        return MultiEpochsDataLoader

    runs = []
    for base, options in ((DataLoader, dict(fallback="error")), (data.DataLoader, {})):
        torch.manual_seed(0)
        loader = multi(base)(folder, 5, shuffle=True, num_workers=1, **options)
        runs.append([[batch[2].tolist() for batch in loader] for _ in range(3)])
    assert runs[0] == runs[1]


@pytest.mark.gpu
def test_timm_prefetch_loader_reads_batches_on_another_stream(timm_loader, image_root):
    """Batches are deleted immediately after use."""
    if "wait_stream(consumer_stream)" not in inspect.getsource(timm_loader.PrefetchLoader.__iter__):
        pytest.skip("before 1.0.30 timm does not wait for the stream that a batch on the GPU comes from")
    dataset = DALIImageFolder(image_root, T.Compose([T.Resize((256, 256)), T.PILToTensor()]))
    arguments = dict(batch_size=8, collate_fn=timm_loader.fast_collate)
    on_gpu = timm_loader.PrefetchLoader(ours(dataset, 8), device=torch.device("cuda"))
    wanted = [
        images.float().sub(on_gpu.mean).div(on_gpu.std)
        for images, _ in ours(dataset, **arguments | {"collate_fn": None})
    ]
    for _ in range(10):
        for (images, _), expected in zip(on_gpu, wanted, strict=True):
            assert torch.allclose(images, expected, atol=1e-4)  # the same arithmetic, in place


# ---- torchdata, HF Trainer, Ray, Composer


def test_torchdata_stateful_loader_gives_torchs_batches(exact_folder):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    loader = torchdata.StatefulDataLoader(exact_folder, 5)
    assert_same_pixels(pixels(loader), pixels(stock(exact_folder, 5)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_torchdata_imported_after_replacing_dataloader_works(exact_folder, monkeypatch, num_workers):
    pytest.importorskip("torchdata.stateful_dataloader")
    for name in [name for name in sys.modules if name.startswith("torchdata")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(data, "DataLoader", DataLoader)
    module = importlib.import_module("torchdata.stateful_dataloader")
    loader = module.StatefulDataLoader(exact_folder, 5, num_workers=num_workers)
    assert isinstance(loader, DataLoader)
    assert outlines(loader, 1) == outlines(ours(exact_folder, 5), 1) and loader.state_dict()


def test_a_subclass_that_skips_our_constructor_works_as_torchs(exact_folder):
    class SkipsOurInit(DataLoader):
        def __init__(self, *args, **kwargs):
            data.DataLoader.__init__(self, *args, **kwargs)

    loader = SkipsOurInit(exact_folder, 5, shuffle=True, num_workers=1)
    message = "SkipsOurInit.__init__ does not call dali_compat.DataLoader.__init__"
    with pytest.warns(FallbackWarning, match=message):
        epochs = outlines(loader)
    assert epochs == outlines(copy.copy(loader)) == outlines(stock(exact_folder, 5, shuffle=True))
    assert loader.explain().endswith(message)
    with pytest.raises(AttributeError, match=message):
        loader.state_dict()


def test_hf_trainers_arguments_give_torchs_batches(exact_folder):
    """Trainer._get_dataloader makes its own loader of the data set with these arguments."""

    def collate(samples):
        return {"pixel_values": torch.stack([s[0] for s in samples]), "labels": torch.tensor([s[1] for s in samples])}

    arguments = dict(
        batch_size=4,
        collate_fn=collate,
        num_workers=1,
        pin_memory=False,
        persistent_workers=False,
        sampler=data.RandomSampler(exact_folder),
        drop_last=False,
        prefetch_factor=2,
        worker_init_fn=lambda worker: None,
    )
    theirs, mine = outlines(stock(exact_folder, **arguments)), outlines(ours(exact_folder, **arguments))
    assert theirs == mine


def test_ray_copies_of_a_loaders_attributes_give_torchs_batches(exact_folder):
    """_WrappedDataLoader copies __dict__ without calling __init__."""
    loader = ours(exact_folder, 5, shuffle=True)
    list(loader)

    class Wrapped(DataLoader):
        def __init__(self, base):
            self.__dict__.update(getattr(base, "__dict__", {}))
            self._dataloader = base

        def __iter__(self):
            yield from self._dataloader

    class CopiesDict(DataLoader):
        def __init__(self, base):
            self.__dict__.update(base.__dict__)

    for wrapped in (Wrapped(loader), CopiesDict(loader)):
        assert isinstance(wrapped, data.DataLoader) and len(wrapped) == 5
        assert outlines(wrapped) == outlines(stock(exact_folder, 5, shuffle=True))
        with pytest.raises(ValueError, match="should not be set"):
            wrapped.batch_size = 3

    class CopiesDictToTorch(data.DataLoader):
        def __init__(self, base):
            self.__dict__.update(base.__dict__)

    assert outlines(CopiesDictToTorch(loader)) == outlines(stock(exact_folder, 5, shuffle=True))


def test_composer_finds_no_iterator_after_iteration(exact_folder):
    loader = ours(exact_folder, 5)
    assert loader._iterator is None and loader.persistent_workers is False
    next(iter(loader))
    assert loader._iterator is None


def test_a_subclass_that_passes_arguments_on_gives_torchs_batches(image_root):

    class Mine(DataLoader):
        def __init__(self, root, **kwargs):
            super().__init__(DALIImageFolder(root, SMALL), shuffle=True, fallback="error", **kwargs)

    assert outlines(Mine(image_root, batch_size=5)) == outlines(
        stock(DALIImageFolder(image_root, SMALL), 5, shuffle=True)
    )

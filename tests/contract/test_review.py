"""Regression tests of faults found in a review of the whole package."""

import os
import sys
import threading

import numpy as np
import programs
import pytest
import torch
from helpers import make_image, sizes_and_kinds
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from dali_compat import DALIImageFolder, DataLoader
from dali_compat.data.headers import Headers

PIXELS = T.Compose([T.Resize((20, 20)), T.PILToTensor()])


def _loader(root, transform=PIXELS, *args, **options):
    return DataLoader(DALIImageFolder(root, transform), *args, device="cpu", fallback="error", **options)


def test_headers_are_correct_when_threads_share_them(image_root):
    paths = [path for path, _ in ImageFolder(image_root).samples]
    expected = sizes_and_kinds(Headers(), list(range(len(paths))), paths)[0]
    faults = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(60):
            headers = Headers()

            def read(headers=headers, order=None):
                for i in np.random.permutation(len(paths)).tolist():
                    if (sizes_and_kinds(headers, [i], [paths[i]])[0][0] != expected[i]).any():
                        faults.append(i)  # noqa: PERF401  (at once: other threads do the same)

            threads = [threading.Thread(target=read) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not faults


def test_sample_order_does_not_depend_on_a_collate_fn_that_draws(image_root):
    """torch runs collate_fn in the workers, so MixUp's random numbers must not change the sampler's next seed."""
    mix = v2.MixUp(num_classes=3)

    def collate(samples):
        images, labels = torch.utils.data.default_collate(samples)
        indices = [label.item() for label in labels]
        return mix(images.float(), labels)[1].sum().item(), indices, torch.rand(()).item()

    orders = []
    for make in (DataLoader, torch.utils.data.DataLoader):
        torch.manual_seed(3)
        options = {"device": "cpu"} if make is DataLoader else {}
        loader = make(ImageFolder(image_root, PIXELS), 6, shuffle=True, num_workers=2, collate_fn=collate, **options)
        epochs = [list(loader) for _ in range(3)]
        orders.append(([[batch[1] for batch in epoch] for epoch in epochs], torch.get_rng_state()))
        if make is DataLoader:  # the random numbers differ between batches
            assert len({batch[2] for epoch in epochs for batch in epoch}) == sum(map(len, epochs))
    assert orders[0][0] == orders[1][0] and torch.equal(orders[0][1], orders[1][1])


def test_decompression_bomb_raises_pillows_error(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    Image.fromarray(make_image(np.random.default_rng(0), 60, 70)).save(tmp_path / "a" / "a.jpg")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(OSError, match="DecompressionBombError"):
        next(iter(_loader(tmp_path)))


def test_growing_batches_share_one_pipeline(image_root):
    loader = _loader(image_root, batch_sampler=[list(range(n)) for n in range(1, 20)])
    assert [len(labels) for _, labels in loader] == list(range(1, 20))
    assert len(loader._route._pipelines) == 1 and loader._route._pipelines[0].idle


def test_pad_after_to_tensor_is_applied_to_files_read_by_pillow(tmp_path):
    (tmp_path / "a").mkdir()
    picture = Image.fromarray(make_image(np.random.default_rng(0), 40, 50))
    picture.convert("CMYK").save(tmp_path / "a" / "a.jpg")
    transform = T.Compose([T.ToTensor(), T.Pad(3, padding_mode="edge")])
    dataset = ImageFolder(tmp_path, transform)
    batch = next(iter(DataLoader(dataset, device="cpu", fallback="silent")))
    assert torch.equal(batch[0][0], dataset[0][0])


def test_interrupted_epoch_gives_no_partial_batch(image_root, monkeypatch):
    import dali_compat.data.lookup as module

    loader = _loader(image_root, PIXELS, 4)
    iterator = iter(loader)
    made = [next(iterator)]
    with monkeypatch.context() as patch:
        patch.setattr(module, "headers_of", lambda folder: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):  # after the batches that were already prepared
            made.extend(iterator)
    with pytest.raises(RuntimeError, match="an interrupt has stopped this epoch"):
        next(iterator)
    assert len(list(loader)) == 6
    assert all(len(images) == len(labels) == 4 for images, labels in [*made, *loader])


def test_explain_works_if_the_fallback_is_an_error(image_root):
    loader = _loader(image_root)
    loader.dataset.transform = T.Lambda(lambda image: T.functional.to_tensor(image).sort().values)
    assert "torchvision route" in loader.explain()
    with pytest.raises(RuntimeError, match="fallback='error'"):
        iter(loader)


def test_explain_lists_memory_format_on_the_torchvision_route(image_root):
    dataset = ImageFolder(image_root, PIXELS, loader=lambda path: None)
    loader = DataLoader(dataset, device="cpu", fallback="silent", memory_format=torch.channels_last)
    assert "memory_format=torch.channels_last" in loader.explain()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_can_iterate_and_exit_normally(image_root):
    """multiprocessing's children end with os._exit; this child runs destructors and atexit hooks."""
    code = f"""
import os, sys
from torchvision import transforms as T
from dali_compat import DALIImageFolder, DataLoader
dataset = DALIImageFolder({str(image_root)!r}, T.Compose([T.Resize((20, 20)), T.ToTensor()]))
loader = DataLoader(dataset, 4, device="cpu")
iterator = iter(loader); next(iterator)
child = os.fork()
if child == 0:
    assert len(list(loader)) == len(loader)
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = programs.run(code, seconds=60)
    assert done.returncode == 0, done.stderr

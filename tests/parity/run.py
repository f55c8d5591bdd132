"""One epoch of ours beside torchvision's images."""

import torch

from dali_compat import DALIImageFolder, DataLoader
from dali_compat.lower import Options, lower
from dali_compat.translate import translate

from .compare import as_tensors
from .drawn import reference


def plan_of(transform, exact: bool = False):
    return lower(translate(transform), Options(exact))


def epoch(root, transform, device: str, exact: bool, batch_size: int = 16, most: int = 10**6, seed: int = 0, **options):
    """(our images, torchvision's) of the first ``most`` files of a folder, in order, by the DALI route."""
    dataset = DALIImageFolder(root, transform)
    dataset.samples = dataset.samples[:: max(1, len(dataset) // most)][:most]
    ragged = plan_of(transform).gives.size is None
    loader = DataLoader(
        dataset, batch_size, collate_fn=_images if ragged else None, device=device, exact=exact, fallback="error", **options
    )
    torch.manual_seed(seed)
    iterator = iter(loader)
    mine = [image for batch in iterator for image in (batch if ragged else batch[0])]
    loader.close()
    assert {image.device.type for image in mine} == {device}
    paths = [path for path, _ in dataset.samples]
    return as_tensors(mine), as_tensors(reference(transform, plan_of(transform), paths, iterator._base_seed))


def _images(samples) -> list[torch.Tensor]:
    return [sample[0] for sample in samples]

"""Run one epoch of this package and compute torchvision's images for it."""

import torch

from dali_compat import DALIImageFolder, DataLoader
from dali_compat.plan import Options
from dali_compat.translate import translate
from dali_compat.translate.lower import lower
from parity.reference import reference

from .compare import as_tensors

_KEPT = 12
_recent: dict[tuple, tuple] = {}


def plan_of(transform, exact: bool = False):
    return lower(translate(transform), Options(exact))


def epoch(root, transform, device: str, exact: bool, **options):
    """Return (our images, torchvision's) of the first ``most`` files of a folder, in order, by the DALI route."""
    mine, plan, paths, seed = ours(root, transform, device, exact, **options)
    return mine, as_tensors(reference(transform, plan, paths, seed))


def epoch_of_either(root, transform, device: str, exact: bool, most: int, **options):
    """Like epoch(), but reuse our images for equal plans, as v1 and v2 of most transforms have."""
    plan = plan_of(transform, exact)
    key = root, device, exact, most, plan.steps, plan.dali, plan.batch
    if key not in _recent:
        _recent[key] = ours(root, transform, device, exact, most=most, **options)
        while len(_recent) > _KEPT:
            del _recent[next(iter(_recent))]
    mine, plan, paths, seed = _recent[key]
    return mine, as_tensors(reference(transform, plan, paths, seed))


def ours(
    root,
    transform,
    device: str,
    exact: bool,
    batch_size: int = 16,
    most: int = 10**6,
    seed: int = 0,
    fallback: str = "error",
    **options,
):
    """Return (our images, their plan, their files, the epoch's base seed)."""
    dataset = DALIImageFolder(root, transform)
    dataset.samples = dataset.samples[:: max(1, len(dataset) // most)][:most]
    loader = DataLoader(
        dataset, batch_size, collate_fn=_images, device=device, exact=exact, fallback=fallback, **options
    )
    torch.manual_seed(seed)
    iterator = iter(loader)
    plan = loader._route.plans[0]
    images = [image for batch in iterator for image in batch]
    loader.close()
    if plan.gives.kind != "pil":
        assert {image.device.type for views in images for image in _views(views)} == {device}
    return as_tensors(images), plan, [path for path, _ in dataset.samples], iterator._base_seed


def _views(image):
    return image if isinstance(image, tuple) else (image,)


def _images(samples) -> list:
    return [sample[0] for sample in samples]

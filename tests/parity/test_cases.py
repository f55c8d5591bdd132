"""Each transform of cases.py through an epoch of the DALI route, and through PIL as odd files go."""

import warnings

import pytest
import torch

from dali_compat import DALIImageFolder, DataLoader, FallbackWarning
from dali_compat.engine.replay import replay
from dali_compat.translate import Untranslatable
from parity.cases import CASES
from parity.compare import as_tensors, error
from parity.drawn import parameters, reference, rows_of
from parity.run import epoch, plan_of

pytestmark = pytest.mark.filterwarnings("ignore:The transform `ToTensor:UserWarning")


def _cases(condition=lambda case: True):
    return pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES if condition(c)])


def _lacks_borders() -> bool:
    import nvidia.dali as dali

    return int(dali.__version__.split(".")[0]) < 2


def _translates(case) -> bool:
    """Where it may fall back: the reason must say which transform, and name a way out or an argument."""
    try:
        plan_of(case.make())
    except Untranslatable as refused:
        assert case.may_fall_back, str(refused)
        assert refused.transform in " ".join(repr(case.make()).split()) and refused.reason
        return False
    return True


@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
@_cases()
def test_images_are_torchvisions(case, exact, device, pictures):
    if not _translates(case) or (case.border and _lacks_borders()):
        return  # the next tests look at what falls back
    mine, theirs = epoch(pictures, case.make(), device, exact, most=12)
    found = error(mine, theirs, case.std, case.levels)
    limits = case.limits(exact, device, theirs[0].dtype)
    print(f"measured {case.name}: {found}, limits {limits}")
    assert found.within(*limits), f"{found}, limits {limits}"


@_cases(lambda case: case.may_fall_back or case.border)
def test_what_falls_back_is_torchvisions_own(case, image_root):
    if _translates(case) and not (case.border and _lacks_borders()):
        return
    transform = case.make()
    with pytest.warns(FallbackWarning) as caught:
        loader = DataLoader(DALIImageFolder(image_root, transform), device="cpu")
    if case.border:
        assert f"padding_mode={case.border!r}" in str(caught[0].message) and "DALI 1." in str(caught[0].message)
    torch.manual_seed(0)
    image = next(iter(loader))[0][0]
    assert image.dtype == transform(DALIImageFolder(image_root).loader(loader.dataset.samples[0][0])).dtype


@_cases()
def test_replay_is_torchvision_bit_by_bit(case, image_root):
    """What goes through PIL one by one; grayscale of floats alone is v2's in both versions, one rounding off v1's."""
    if not _translates(case):
        return
    transform, plan = case.make(), plan_of(case.make())
    paths = [path for path, _ in DALIImageFolder(image_root).samples[:5]]
    arrays = parameters(plan, paths, seed=5)
    mine = as_tensors(replay(path, plan.steps, rows_of(arrays, i)) for i, path in enumerate(paths))
    theirs = as_tensors(reference(transform, plan, paths, seed=5))
    limit = 255e-6 if "Grayscale of floats" in case.name else 0
    assert error(mine, theirs).within(limit, limit)


def test_every_registered_transform_has_a_case():
    from dali_compat.translate.registry import _TRANSLATORS

    def classes(transform):
        yield type(transform)
        for inner in getattr(transform, "transforms", None) or (transform if isinstance(transform, torch.nn.Sequential) else ()):
            yield from classes(inner)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        covered = {kind for case in CASES for kind in classes(case.make())}
    assert {kind for kind in _TRANSLATORS if kind.__module__.startswith(("torch",))} <= covered

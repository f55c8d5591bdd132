"""Random chains of transforms: a transform gives the same result whatever comes before and after it.

`python tests/parity/chains.py --seconds 600` tries other chains.
"""

import random

import numpy as np
import pytest
from torchvision import transforms as v1
from torchvision.transforms import v2

from dali_compat.ops import draws
from parity import chains
from parity.catalogue import TRANSFORMS

pytestmark = pytest.mark.filterwarnings("ignore")  # about images that do not suit a transform, and about fallbacks

NOT_IN_CHAINS = {
    "ImageClassification": "a chain itself",
    "ToPILImage": "of what was a PIL image before",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return chains.make_files(tmp_path_factory.mktemp("chains"))


@pytest.mark.alike
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("T", [v1, v2], ids=["v1", "v2"])
def test_a_random_chain_equals_torchvision(T, seed, device, files):
    rng = random.Random(seed)
    transform, paths = chains.chain(T, rng), files.some(rng)
    for exact in (True,) if device != "cpu" or chains.same_plan(transform) else (True, False):
        tried = chains.attempt(transform, paths, device, exact, seed)
        print(f"measured {tried}, exact={exact}: {transform}")
        assert not tried.wrong, f"{tried.wrong}, exact={exact}: {transform} of {paths}"


@pytest.mark.parametrize("draw", ["center_crop", "random_crop", "random_resized_crop", "pad"])
def test_attempt_detects_a_window_that_is_one_pixel_off(draw, files, monkeypatch):
    uniforms, own = draws._DRAWS[draw]

    def wrong(*args, **kwargs):
        arrays, sizes = own(*args, **kwargs)
        return arrays | {"start": arrays["start"] - np.sign(arrays["start"])}, sizes

    transforms = {
        "center_crop": v1.CenterCrop(30),
        "random_crop": v1.RandomCrop(30),
        "random_resized_crop": v1.RandomResizedCrop(30, (0.1, 0.2)),
        "pad": v1.Pad(3),
    }
    transform = v1.Compose([transforms[draw], v1.PILToTensor()])
    assert not chains.attempt(transform, files.photos, "cpu", True, 0).wrong
    reference = chains.reference

    def right(*args):
        monkeypatch.setitem(draws._DRAWS, draw, (uniforms, own))
        return reference(*args)

    monkeypatch.setattr(chains, "reference", right)
    monkeypatch.setitem(draws._DRAWS, draw, (uniforms, wrong))
    assert chains.attempt(transform, files.photos, "cpu", True, 0).wrong.startswith("mean")


def test_chains_contain_every_transform_of_the_catalogue():
    found = set()
    for seed in range(400):
        for T in (v1, v2):
            for module in chains.chain(T, random.Random(seed)).transforms:
                found |= {type(module).__name__}.union(*(map(_names, getattr(module, "transforms", ()) or ())))
    assert {entry.name for entry in TRANSFORMS} - found - {"Compose"} == set(NOT_IN_CHAINS)


def _names(module) -> set[str]:
    return {type(module).__name__}

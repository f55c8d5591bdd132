"""Sub-policies of AutoAugment and mixture weights of AugMix.

test_distributions_fed.py compares the operations and magnitudes of all policies with torchvision's.
"""

import numpy as np
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from dali_compat.ops.draws import compute
from dali_compat.ops.policy import AUGMENTATIONS
from dali_compat.randoms import Randoms
from dali_compat.translate import translate
from unit.recorded_draws import drawn
from unit.statistics import COUNT, differ

RECORDS = 3000
HEIGHT, WIDTH = 60, 80
VERSIONS = {"v1": v1, "v2": v2}
MIX = {"severity": 3, "mixture_width": 3, "chain_depth": -1, "alpha": 1.0, "all_ops": True}


def our_arrays(name, count=COUNT, seed=0, **args):
    return drawn(name, np.tile([HEIGHT, WIDTH], (count, 1)), seed, **args)[1]


# ---- AutoAugment

POLICIES = ("imagenet", "cifar10", "svhn")


def sub_policies(policy):
    """Return ((name, probability, bin), (name, probability, bin)) of each sub-policy."""
    return v1.AutoAugment(v1.AutoAugmentPolicy(policy)).policies


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("policy", POLICIES)
def test_auto_augment_steps_take_both_operations_from_one_sub_policy(policy, version):
    steps = translate(VERSIONS[version].AutoAugment(v1.AutoAugmentPolicy(policy))).translated[0].steps
    sizes = np.tile([HEIGHT, WIDTH], (RECORDS, 1))
    first, second = compute(steps, sizes, Randoms(1, 0, RECORDS), slice(None))
    both = np.flatnonzero(first["flag"] & second["flag"])
    found = {tuple(AUGMENTATIONS[one["which"][row]] for one in (first, second)) for row in both}
    assert len(found) > 10 and found <= {(a, b) for (a, _, _), (b, _, _) in sub_policies(policy)}


# ---- AugMix


@pytest.mark.parametrize("alpha", [1.0, 0.2, 3.7])
@pytest.mark.parametrize("width", [1, 3])
def test_aug_mix_weights_have_torchvisions_distribution(alpha, width):
    mix = our_arrays("aug_mix", 4000, **{**MIX, "alpha": alpha, "mixture_width": width}, like="v1")["mix"]
    assert mix.shape == (4000, 1 + width) and mix.dtype == np.float32 and (mix > 0).all() and (mix < 1).all()
    assert np.allclose(mix.sum(1), 1, atol=1e-6)
    torch.manual_seed(0)
    image_or_not = torch._sample_dirichlet(torch.full((4000, 2), alpha))
    chains = torch._sample_dirichlet(torch.full((4000, width), alpha)) * image_or_not[:, 1:]
    expected = torch.cat([image_or_not[:, :1], chains], 1).numpy()
    for column in range(1 + width):
        assert not differ(mix[:, column], expected[:, column])
    if width > 1:
        assert not differ(mix[:, 1] / mix[:, 1:].sum(1), expected[:, 1] / expected[:, 1:].sum(1))
        share = mix[:, 1] / mix[:, 1:].sum(1)
        assert abs(np.corrcoef(mix[:, 0], share)[0, 1]) < 4.5 / 4000**0.5


def test_aug_mix_weights_with_tiny_alpha_are_finite():
    """Gamma variates underflow for these alphas; torch returns halves, ones and the smallest float32."""
    for alpha in (1e-3, 1e-5):
        mix = our_arrays("aug_mix", 300, **{**MIX, "alpha": alpha}, like="v1")["mix"]
        assert np.isfinite(mix).all() and np.allclose(mix.sum(1), 1, atol=1e-6) and (mix[:, 0] == 0.5).any()


def test_wrong_aug_mix_weights_are_detected():
    mix = our_arrays("aug_mix", 4000, **MIX, like="v1")["mix"]
    flat = our_arrays("aug_mix", 4000, **{**MIX, "alpha": 1.6}, like="v1")["mix"]
    assert differ(mix[:, 0], flat[:, 0])
    rng = np.random.default_rng(0).random((4000, 3))
    assert differ(mix[:, 1] / mix[:, 1:].sum(1), rng[:, 0] / rng.sum(1)), "shares of uniform numbers"

"""The rows of tests/parity/transforms.py with the modules that translate them."""

import warnings

import pytest
from parity.catalogue import TRANSFORMS

from dali_compat.ops.translators import _TRANSLATORS, Gated, Nested
from dali_compat.plan import ImageSpec, Step
from dali_compat.translate import translate

ROWS = [(entry, version) for entry in TRANSFORMS for version in entry.versions()]


every_row = pytest.mark.parametrize("entry, version", ROWS, ids=[f"{entry.name}-{version}" for entry, version in ROWS])


def kind_of(function) -> str:
    return function.__module__.rpartition(".")[2]


def own_steps(entry, version) -> tuple[str, list[Step]]:
    """Return the kind of a row's translator, and the steps that it creates itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        *before, transform = entry.made(version).transforms
    translator, _ = _TRANSLATORS[type(transform)]
    made = translator(transform, translate(tuple(before)).gives)
    if isinstance(made, Gated):
        made = [Step("choose", ImageSpec(), draw=made.draw)]
    return kind_of(translator), [] if isinstance(made, Nested) else list(made)

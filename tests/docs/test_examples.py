"""Run the examples of the public docstrings as doctests."""

import doctest
import inspect

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

import dali_compat
from dali_compat.archives.pack import pack
from dali_compat.ops.translators import _TRANSLATORS

NAMES = sorted(set(dali_compat.__all__) - {"DALIDataLoader"})  # an alias of DataLoader
NEEDS = {"DALIHuggingFace": "datasets", "DALILMDB": "lmdb"}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("examples")
    for name in ("cat", "dog"):
        (root / "train" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (64, 48), (40 * number, 90, 20)).save(root / "train" / name / f"{number}.jpg")
    for extension in ("rec", "tfrecord", "lmdb", "tar"):
        number = "-0" if extension in ("tfrecord", "tar") else ""
        pack(root / "train", root / f"train{number}.{extension}")
    (root / "train.csv").write_text("file,label\ncat/0.jpg,cat\ndog/0.jpg,dog")
    (root / "empty.jpg").touch()
    return root


@pytest.fixture
def names(folder, monkeypatch, recwarn):
    """Return the names that examples may use in addition to those of dali_compat."""
    monkeypatch.chdir(folder)
    before = dict(_TRANSLATORS)
    chain = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    public = {name: getattr(dali_compat, name) for name in dali_compat.__all__}
    yield {"np": np, "torch": torch, "transforms": transforms, "transform": chain, **public}
    dali_compat.uninstall()
    _TRANSLATORS.clear()
    _TRANSLATORS.update(before)


@pytest.mark.parametrize("name", NAMES)
def test_docstring_examples_print_the_shown_results(name, names, capsys):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    text = inspect.cleandoc(getattr(dali_compat, name).__doc__)
    found = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    assert found.examples and "\nExamples:\n    >>> " in text
    failed = doctest.DocTestRunner(optionflags=OPTIONS).run(found).failed
    assert not failed, capsys.readouterr().out


def test_a_wrong_example_fails(capsys):
    found = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    assert doctest.DocTestRunner(optionflags=OPTIONS).run(found).failed == 1

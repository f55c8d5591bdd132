"""Type checking as editors and users see it: public names, arguments and batches have types."""

import ast
import inspect
import pydoc
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest
from torch.utils import data

import dali_compat
from dali_compat import loader

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dali_compat"

GOOD = """
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import Dataset, Subset
from torchvision import datasets, transforms as T

import dali_compat
from dali_compat import DALIArrayDataset, DALIImageFolder, DALILMDB, DALIRecordIO, DALITFRecord, DALIWebDataset
from dali_compat import DALIHuggingFace, DALIImageList, DALIImageTable
from dali_compat import BadImageWarning, FallbackWarning, ImageReadError, LoaderStats, SampleError
from dali_compat import DALIDataLoader, DataLoader, batched, install, merge_states, on_batch, register, uninstall, views

folder = DALIImageFolder("train", T.Compose([T.Resize(8), T.ToTensor()]), return_index=True, index_cache=True)
dataset = folder
loader = DataLoader(dataset, batch_size=4, device="cpu", exact=True)
for images, labels in loader:
    images.to("cuda", non_blocking=True)
    loss = torch.nn.functional.cross_entropy(images, labels)
loader.explain().splitlines()
paths: list[str] = [error.path for error in loader.errors]
classes: list[str] = folder.classes
count: int = len(loader)
stats: LoaderStats = loader.stats(reset=True)
waited: float = stats.waited / stats.seconds
state: dict[str, Any] = merge_states([loader.state_dict()])
loader.load_state_dict(state, strict=False)
images = batched(T.RandomCrop(8), exact=True)(images)
loader.close()

DataLoader(dataset, 4, True, num_workers=2, pin_memory=True, persistent_workers=True, prefetch_factor=4)
DataLoader(dataset, batch_size=None, sampler=[1, 2], collate_fn=list, generator=torch.Generator(), in_order=False)
DataLoader(dataset, batch_sampler=[[1, 2], [3]], worker_init_fn=torch.manual_seed, multiprocessing_context="spawn")
DataLoader(dataset, device=torch.device("cuda", 1), memory_format=torch.channels_last)
DataLoader(dataset, device=0, fallback="error", on_error="replace", on_error_in_python=True)
DataLoader(datasets.CIFAR10("cifar", transform=views(T.ToTensor(), T.RandomCrop(8))), 512)
DataLoader(Subset(dataset, [0, 1]), 2)
DataLoader(DALIArrayDataset(torch.zeros(2, 8, 8, dtype=torch.uint8), [0, 1]), 2)
DataLoader(DALITFRecord(["a.tfrecord", "b.tfrecord"], return_index=True), 2)
DataLoader(DALIRecordIO("a.rec"), 2)
DataLoader(DALIImageList([b"a.jpg", "b.jpg"], [[0.5], [1.0]], T.ToTensor(), int, root="photos"), 2)
DataLoader(DALIImageTable("a.csv", "file", ["x", "y"], root="photos", classes=["a"], check_files=False), 2)
DataLoader(DALIHuggingFace(object(), target=None, transform=T.ToTensor()), 2)
names: list[str] | None = DALIImageTable("a.csv").classes
DataLoader(DALIWebDataset("{000..127}.tar", json_field="class"), 2)
DataLoader(DALILMDB("a.lmdb", labels={"a": 0}), 2)


class Mine(Dataset[tuple[torch.Tensor, int]]):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3), index


mine: DataLoader[tuple[torch.Tensor, int]] = DataLoader(Mine(), 4)
theirs: torch.utils.data.DataLoader[tuple[torch.Tensor, int]] = mine
old: DALIDataLoader[Any] = DALIDataLoader(dataset)


class Invert:
    pass


def inverted(images: torch.Tensor) -> torch.Tensor:
    return 1 - images


@register(Invert, consumes="")
def invert(transform: Invert, spec: Any) -> Iterable[Any]:
    return on_batch(inverted, spec)


with install(exact=True, device="cpu", fallback="error", report=True, on_error="skip"):
    torch.utils.data.DataLoader(dataset, 4)
uninstall()

try:
    next(iter(loader))
except ImageReadError as error:
    print(error.filename)
"""

BAD = {
    "DataLoader(dataset, batch_sze=4)": "call-arg",
    'DataLoader(dataset, batch_size="4")': "arg-type",
    "DataLoader(batch_size=4)": "call-arg",
    "DataLoader(dataset, device=1.5)": "arg-type",
    'DataLoader(dataset, exact="yes")': "arg-type",
    'DataLoader(dataset, fallback="wrn")': "arg-type",
    'DataLoader(dataset, on_error="ignore")': "arg-type",
    "DataLoader(dataset, memory_format=torch.float32)": "arg-type",
    "DataLoader(dataset).explane()": "attr-defined",
    "text: bytes = DataLoader(dataset).explain()": "assignment",
    'DALIImageFolder("train", index_cahce=True)': "call-arg",
    'DALIImageFolder("train", return_index="no")': "arg-type",
    "DALIArrayDataset([[1]], [0])": "arg-type",
    "DALIRecordIO(1)": "arg-type",
    "DALIImageList([1])": "list-item",
    'DALIImageTable("a.csv", rot="photos")': "call-arg",
    "DALIHuggingFace(object(), target=1)": "arg-type",
    'DALILMDB("a.lmdb", labels=1.5)': "arg-type",
    'DALIWebDataset("a.tar", json_feild="class")': "call-arg",
    "dali_compat.NoSuchName": "attr-defined",
    "from dali_compat import NoSuchName": "attr-defined",
    'register("Invert")': "arg-type",
    "views(3)": "arg-type",
    "on_batch(inverted)": "call-arg",
    "install(fallback=1)": "arg-type",
    'install(fallback="quiet")': "arg-type",
    "SampleError.position": "attr-defined",
    "loader.stats().waitd": "attr-defined",
    "loader.load_state_dict([])": "arg-type",
}


def mypy(*arguments: str) -> str:
    """Run mypy and return its output."""
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache"), "--no-error-summary", *arguments]
    done = subprocess.run(command, cwd=ROOT, env={"MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def users_settings() -> str:
    """Return pyproject.toml with the settings of ``--strict --ignore-missing-imports`` for script.py.

    Modules such as torch, which take most of the time, keep their options, so that mypy's cache is used.
    """
    text = (ROOT / "pyproject.toml").read_text()
    strict = 'module = [\n    "dali_compat",\n'
    for ours, theirs in ("follow_untyped_imports", "ignore_missing_imports"), (strict, 'module = [\n    "script",\n'):
        assert text.count(ours) == 1
        text = text.replace(ours, theirs)
    return text


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mypy_accepts_the_package_and_finds_the_errors_of_user_scripts(tmp_path):
    """mypy accepts the good lines and reports exactly one error for each bad line, without following torchvision."""
    assert mypy() == ""
    script, settings = tmp_path / "script.py", tmp_path / "users.toml"
    script.write_text(GOOD + "".join(f"{line}\n" for line in BAD))
    settings.write_text(users_settings())
    output = mypy(f"--config-file={settings}", str(script))
    first = GOOD.count("\n") + 1
    codes = {line: [] for line in range(first, first + len(BAD))}
    for line, code in re.findall(r"script\.py:(\d+): error: .*\[([\w-]+)\]$", output, re.MULTILINE):
        codes.setdefault(int(line), []).append(code)
    assert codes == {first + i: [code] for i, code in enumerate(BAD.values())}, output


def test_good_script_uses_every_public_name():
    named = {
        alias.name for node in ast.walk(ast.parse(GOOD)) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert set(dali_compat.__all__) <= named


def test_every_public_name_has_a_type():
    """The imports for type checkers match the lazy imports."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and "not" not in ast.unparse(node.test)]
    typed = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    typed |= {target.id: "loader" for node in block.body if isinstance(node, ast.Assign) for target in node.targets}
    assert typed == dali_compat._HOME and set(typed) == set(dali_compat.__all__)


def _shown_arguments() -> ast.arguments:
    """Return DataLoader's arguments as type checkers see them."""
    tree = ast.parse(inspect.getsource(loader))
    (kind,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "DataLoader"]
    (block,) = [node for node in kind.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return block.body[0].args


def _shown() -> dict[str, str | None]:
    """Return the default of each parameter as type checkers see it."""
    given = _shown_arguments()
    defaults = [None] * (len(given.args) - len(given.defaults)) + [ast.unparse(value) for value in given.defaults]
    named = zip([arg.arg for arg in given.args], defaults, strict=True)
    return dict(named) | {
        arg.arg: ast.unparse(value) for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    }


def test_typed_signature_has_torchs_arguments_and_ours():
    """The order and the defaults match; arguments of newer versions of torch are included."""
    shown, parameters = _shown(), inspect.signature(dali_compat.DataLoader.__init__).parameters
    assert [name for name in shown if name in parameters] == list(parameters)
    assert set(shown) - set(parameters) <= {"in_order"}  # added in torch 2.6
    for name, parameter in parameters.items():
        if parameter.default is not parameter.empty:
            assert str(parameter.default) == shown[name].strip("'"), name


def test_help_shows_the_types_of_added_arguments():
    torchs = inspect.signature(data.DataLoader.__init__).parameters
    shown = {argument.arg: ast.unparse(argument.annotation) for argument in _shown_arguments().kwonlyargs}
    parameters = inspect.signature(dali_compat.DataLoader.__init__).parameters
    ours = {name: one.annotation.replace('"', "'") for name, one in parameters.items() if name not in torchs}
    assert len(ours) > 6 and ours == {name: shown[name] for name in ours}
    text = pydoc.render_doc(dali_compat.DataLoader, renderer=pydoc.plaintext)
    assert "Literal['warn', 'silent', 'error']" in text.replace('"', "'").replace("\\", "")


def test_torchs_constructor_receives_only_its_arguments(monkeypatch):
    """Arguments unknown to this package, of another torch version, are passed on unchanged."""
    received = []
    monkeypatch.setattr(data.DataLoader, "__init__", lambda self, *args, **kwargs: received.append((args, kwargs)))
    monkeypatch.setattr(dali_compat.DataLoader, "_choose_route", lambda self: None)
    dali_compat.DataLoader([], 4, device="cpu", newer=1)
    assert received == [(([], 4), {"newer": 1})]


def test_package_is_marked_as_typed():
    assert (PACKAGE / "py.typed").read_text() == ""
    assert 'package_data={"dali_compat": ["py.typed"]}' in (ROOT / "setup.py").read_text()


def _comments(path: Path) -> list[str]:
    with path.open("rb") as file:
        return [token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT]


def test_type_ignores_have_a_code_and_a_reason():
    found = [comment for path in PACKAGE.rglob("*.py") for comment in _comments(path) if "type: ignore" in comment]
    assert found and not [
        comment for comment in found if not re.fullmatch(r"# type: ignore\[[\w-]+\]  # \w.*", comment)
    ]

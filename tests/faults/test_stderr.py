"""Files damaged between two epochs. The samples equal torch's, and no decoder prints to stderr."""

import ast

import programs
import pytest
from helpers import make_folder

PROGRAM = '''
import io
import json
import os
import sys
import warnings
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as T

from dali_compat import DALIImageFolder, DataLoader


def encoded(data, size, format, cut=None):
    file = io.BytesIO()
    Image.open(io.BytesIO(data)).resize(size).save(file, format)
    return file.getvalue()[:cut]


DAMAGES = {
    "as it was": bytes,
    "truncated": lambda data: data[: len(data) * 7 // 10],
    "another image": lambda data: encoded(data, (90, 90), "JPEG"),
    "of another size": lambda data: encoded(data, (77, 99), "JPEG"),
    "garbage": lambda data: bytes(range(256)) * (len(data) // 256),
    "garbage in the middle": lambda data: data[: len(data) // 2] + bytes(range(255, -1, -1)) + data[len(data) // 2 :],
    "zeros at the end": lambda data: data[: len(data) // 2] + bytes(len(data) // 2),
    "data after the end": lambda data: data + bytes(range(256)),
    "empty": lambda data: b"",
    "a PNG": lambda data: encoded(data, (90, 90), "PNG"),
    "a truncated PNG": lambda data: encoded(data, (90, 90), "PNG", -500),
}


class Own(Dataset):
    def __init__(self, paths, transform):
        self.paths, self.transform = paths, transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index


def torchs(dataset):
    """The images that torch's loader can read, by index."""
    images = {}
    for index in range(len(dataset)):
        try:
            images[index] = dataset[index][0]
        except OSError:
            pass
    return images


root, kind = Path(sys.argv[1]), sys.argv[2]
transform = T.Compose([T.Resize(48), T.CenterCrop(40), T.PILToTensor()])
for exact in (False, True):
    for workers in (0, 2):
        folder = DALIImageFolder(root, transform, return_index=True)
        dataset = folder if kind == "folder" else Own([path for path, _ in folder.samples], transform)
        policy = {"on_error": "skip", "fallback": "error" if kind == "folder" else "silent"}
        loader = DataLoader(dataset, 1, num_workers=workers, device="cpu", exact=exact, **policy)
        whole = {path: Path(path).read_bytes() for path, _ in folder.samples}
        for epoch in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                batches = list(loader)
            wanted = torchs(folder)
            images = torch.cat([batch[0] for batch in batches])
            assert torch.cat([batch[-1] for batch in batches]).tolist() == list(wanted)
            if exact:
                assert torch.equal(images, torch.stack(list(wanted.values())))
            if epoch == 0:
                for (path, data), damage in zip(whole.items(), DAMAGES.values(), strict=False):
                    Path(path).write_bytes(damage(data))
        print([name for index, name in enumerate(DAMAGES) if index not in wanted])
        for path, data in whole.items():
            Path(path).write_bytes(data)
'''
REFUSED = ["truncated", "garbage", "zeros at the end", "empty", "a truncated PNG"]


@pytest.mark.parametrize("kind", ["folder", "own"])
def test_damage_between_epochs_prints_nothing_to_stderr(tmp_path, kind):
    root = make_folder(tmp_path / "images", classes=2, per_class=8, low=400, high=600, special=False)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = programs.python(program, root, kind)
    assert (done.returncode, done.stderr) == (0, "")
    refused = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    assert len(refused) == 4 and all(names == REFUSED for names in refused), done.stdout

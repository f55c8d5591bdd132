"""A bucket on this machine, with the images of a folder."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import make_folder

pytest.importorskip("obstore")

from remote.server import Running


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> Path:
    """18 images of three classes in train/, one of them in a folder below, of a name that URLs escape."""
    root = tmp_path_factory.mktemp("bucket")
    train = make_folder(root / "train", per_class=6)
    (train / "class_b" / "a b%20ü+").mkdir()
    (train / "class_b" / "05.jpg").rename(train / "class_b" / "a b%20ü+" / "#1.jpg")
    (train / "class_c" / "notes.txt").write_text("no image")
    return root


@pytest.fixture(scope="session")
def bucket(files) -> Iterator[Running]:
    with Running(files, page=7) as server:
        yield server


@pytest.fixture
def faulty(files, tmp_path) -> Iterator[tuple[Running, Callable[[dict[str, str]], None]]]:
    """Such a bucket, and what sets its faults."""
    faults = tmp_path / "faults.json"

    def set_faults(now: dict[str, str]) -> None:
        faults.with_suffix(".new").write_text(json.dumps(now))
        faults.with_suffix(".new").replace(faults)

    set_faults({})
    with Running(files, page=7, faults=faults) as server:
        server.options["retry_config"] = retry_config()
        yield server, set_faults


def retry_config() -> dict:
    """Of tests that wait for the last retry."""
    from datetime import timedelta

    backoff = {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(milliseconds=20), "base": 2}
    return {"max_retries": 3, "retry_timeout": timedelta(seconds=10), "backoff": backoff}

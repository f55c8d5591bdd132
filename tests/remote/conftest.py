"""A local object server with a bucket that contains a folder of images."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import make_folder

pytest.importorskip("obstore")

from remote.server import Running


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> Path:
    """Return a folder with 18 images of three classes in train/, one in a subfolder whose name URLs must escape."""
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
    """Serve such a bucket, and return it with a function that sets its faults."""
    faults = tmp_path / "faults.json"

    def set_faults(now: dict[str, str]) -> None:
        faults.with_suffix(".new").write_text(json.dumps(now))
        faults.with_suffix(".new").replace(faults)

    set_faults({})
    with Running(files, page=7, faults=faults) as server:
        server.options["retry_config"] = retry_config()
        yield server, set_faults


def retry_config() -> dict:
    """Return retry options for tests that wait for the last retry."""
    from datetime import timedelta

    backoff = {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(milliseconds=20), "base": 2}
    return {"max_retries": 3, "retry_timeout": timedelta(seconds=10), "backoff": backoff}

"""Commands with URLs, and cached lists of buckets."""

import json
import re
import shutil

import programs
import pytest
from contract.both import EXACT, assert_same_epoch, ours, stock
from torchvision.datasets import ImageFolder

import dali_compat
from dali_compat import DALIImageFolder, DALIRecordIO, ImageReadError
from dali_compat.archives import files
from dali_compat.cli import main
from dali_compat.cli.arguments import dataset_class
from remote.conftest import retry_config
from remote.server import Running


@pytest.fixture
def served(files, tmp_path, monkeypatch):
    """Serve a copy of the files, configured by the environment; return the server, the folder and a function that
    sets faults."""
    root, faults = tmp_path / "served", tmp_path / "faults.json"
    shutil.copytree(files, root)
    with Running(root, page=7, faults=faults) as server:
        named = {"ENDPOINT": server.endpoint, "REGION": "us-east-1", "SKIP_SIGNATURE": "true", "ALLOW_HTTP": "true"}
        for name, value in named.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        server.options["retry_config"] = retry_config()
        yield server, root, lambda now: faults.write_text(json.dumps(now))


def command(*words) -> tuple[int, str, str]:
    done = programs.python("-m", "dali_compat", *words)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("ending", ["rec", "tfrecord", "tar"])
def test_pack_uploads_an_archive_with_its_index(served, ending, monkeypatch, tmp_path, capsys):
    server, root, _ = served
    url = f"{server.url}/packed/out.{ending}"
    assert main(["pack", str(root / "train"), url]) == 0
    assert f"{url}: 18 images of 3 classes" in capsys.readouterr().out
    beside = {"rec": {"out.idx"}}.get(ending, set())
    names = {path.name for path in (root / "packed").iterdir()}
    assert names >= {f"out.{ending}", f"out.{ending}.classes.txt", *beside} and len(names) == 3 + len(beside)
    assert main(["pack", str(root / "train"), str(tmp_path / f"out.{ending}")]) == 0
    assert (root / "packed" / f"out.{ending}").read_bytes() == (tmp_path / f"out.{ending}").read_bytes()
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr(files.FetchedFile, "readinto", None)  # the index was uploaded as well
    made = getattr(dali_compat, dataset_class(url))(url)
    local = DALIImageFolder(root / "train", EXACT)
    made.transform = EXACT
    assert made.classes == local.classes
    assert_same_epoch(ours(made, 5, device="cpu"), stock(local, 5))
    assert main(["pack", str(root / "train"), url]) == 1
    assert "exists; remove it" in capsys.readouterr().err


def test_pack_from_a_bucket_equals_pack_from_a_folder(served, tmp_path, capsys):
    server, root, set_faults = served
    mine, theirs = tmp_path / "mine.rec", tmp_path / "theirs.rec"
    set_faults({"train/class_b/02.jpg": "403"})
    assert main(["pack", f"{server.url}/train", str(mine)]) == 1
    assert "cannot read s3://bucket/train/class_b/02.jpg" in capsys.readouterr().err and not mine.exists()
    set_faults({})
    assert main(["pack", f"{server.url}/train", str(mine)]) == 0
    assert main(["pack", str(root / "train"), str(theirs)]) == 0
    assert mine.read_bytes() == theirs.read_bytes()
    assert mine.with_suffix(".idx").read_bytes() == theirs.with_suffix(".idx").read_bytes()


def test_pack_after_a_failed_upload_packs_again(served, tmp_path, capsys):
    server, root, set_faults = served
    url = f"{server.url}/packed/out.tar"
    set_faults({"put/": "403"})
    assert main(["pack", str(root / "train"), url]) == 1
    assert "cannot write s3://bucket/packed/out.tar" in capsys.readouterr().err
    set_faults({})
    (root / "train" / "class_a" / "00.jpg").unlink()
    assert main(["pack", str(root / "train"), url]) == 0
    assert "17 images" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["pack", str(root / "train"), f"{server.url}/out.lmdb"])
    assert "LMDB cannot be read from object storage" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["train", "all.tar"])
def test_check_of_a_url_finds_the_broken_image(served, capsys, what):
    server, root, set_faults = served
    (root / "train" / "class_b" / "03.jpg").write_bytes(b"no image at all")
    (root / "train" / "class_c" / "notes.txt").unlink()  # a bucket's list contains only images
    if what == "all.tar":
        assert main(["pack", str(root / "train"), str(root / "all.tar")]) == 0
    code, out, err = command("check", f"{server.url}/{what}", "--json")
    report = json.loads(out)
    capsys.readouterr()
    main(["check", str(root / what), "--json"])
    local = json.loads(capsys.readouterr().out)
    assert code == 1 and report["counts"]["broken"] == 1, err
    assert report["counts"] == local["counts"]
    (broken,) = report["broken"]
    assert broken["path"].startswith(f"{server.url}/{what}") and "text" in broken["reason"]
    if what == "train":
        assert broken["path"] == f"{server.url}/train/class_b/03.jpg"
        set_faults({"train/class_b/04.jpg": "404"})
        code, out, _ = command("check", f"{server.url}/train", "--json")
        assert {one["path"] for one in json.loads(out)["broken"]} == {
            f"{server.url}/train/class_b/0{number}.jpg" for number in (3, 4)
        }
        with pytest.raises(SystemExit, match="2"):
            main(["check", f"{server.url}/nowhere"])


@pytest.mark.parametrize("what", ["train", "all.tar"])
def test_bench_of_a_url_prints_its_speed(served, what):
    server, root, _ = served
    if what == "all.tar":
        assert main(["pack", str(root / "train"), str(root / "all.tar")]) == 0
    transform = "T.Compose([T.Resize((8, 8)), T.ToTensor()])"
    # more timed batches than are fetched ahead, so that some objects are fetched while the time is measured
    options = ["--device", "cpu", "--batch-size", "4", "--batches", "8", "--transform", transform]
    code, out, err = command("bench", f"{server.url}/{what}", *options)
    # A busy machine may answer after the client's timeout: any count will do, another test checks it.
    assert code == 0 and "\nloading " in out and re.search(r"\d+ requests sent again", out), err + out


# ---- index_cache


def requests(server) -> int:
    from urllib.request import urlopen

    with urlopen(f"{server.endpoint}/counts") as answer:
        return json.load(answer)["GET"]


@pytest.mark.parametrize("place", [True, "folder", "bucket"])
def test_index_cache_keeps_the_list_of_a_bucket(served, tmp_path, place):
    server, root, _ = served
    cache = {"folder": tmp_path / "lists", "bucket": f"{server.url}/lists"}.get(place, place)

    def made(**options) -> DALIImageFolder:
        return DALIImageFolder(
            f"{server.url}/train", EXACT, index_cache=cache, storage_options=server.options, **options
        )

    first, before = made(), requests(server)
    second = made()
    assert requests(server) - before == (2 if place == "bucket" else 1)
    plain = DALIImageFolder(f"{server.url}/train", EXACT, storage_options=server.options)
    for one in (first, second):
        assert (one.samples, one.classes, one.targets) == (plain.samples, plain.classes, plain.targets)
        assert one._objects._etags == plain._objects._etags and one._objects._sizes == plain._objects._sizes
    assert_same_epoch(ours(second, 5, device="cpu"), stock(ImageFolder(root / "train", EXACT), 5))
    path = root / "train" / "class_b" / "02.jpg"
    path.write_bytes((root / "train" / "class_b" / "03.jpg").read_bytes())
    (root / "train" / "class_b" / "04.jpg").unlink()
    third = made()
    assert third.samples == plain.samples
    with pytest.raises(ImageReadError, match=r"02\.jpg: ValueError: it has changed"):
        third[8]
    with pytest.raises(FileNotFoundError, match=r"04\.jpg"):
        third[10]
    with pytest.raises(ValueError, match="cannot be combined with is_valid_file"):
        made(is_valid_file=bool)


def test_damaged_or_foreign_cached_lists_are_rebuilt(served, tmp_path):
    server, root, set_faults = served
    options = server.options | {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "topsecret"}
    made = DALIImageFolder(f"{server.url}/train", index_cache=tmp_path / "lists", storage_options=options)
    (kept,) = (tmp_path / "lists").iterdir()
    assert b"AKIAEXAMPLE" not in kept.read_bytes() and b"topsecret" not in kept.read_bytes()
    kept.write_bytes(kept.read_bytes()[:-100])
    again = DALIImageFolder(f"{server.url}/train", index_cache=tmp_path / "lists", storage_options=options)
    assert again.samples == made.samples
    set_faults({"put/": "403"})
    with pytest.warns(UserWarning, match="list of s3://bucket/train cannot be saved"):
        denied = DALIImageFolder(f"{server.url}/train", index_cache=f"{server.url}/lists", storage_options=options)
    assert denied.samples == made.samples
    (root / "lists" / kept.name).write_bytes(b"nothing of ours")
    set_faults({})
    url = f"{server.url}/lists"
    assert DALIImageFolder(f"{server.url}/train", index_cache=url, storage_options=options).samples == made.samples
    empty = DALIImageFolder(f"{server.url}/train", index_cache=url, allow_empty=True, storage_options=options)
    assert len(empty) == 18 and len(list((root / "lists").iterdir())) == 2


def test_an_archive_with_an_unreadable_remote_index_is_indexed(served):
    server, root, set_faults = served
    assert main(["pack", str(root / "train"), f"{server.url}/a/x.rec"]) == 0
    for path in (root / "a").glob(".*"):
        set_faults({f"a/{path.name}": "403"})
    assert len(DALIRecordIO(f"{server.url}/a/x.rec", storage_options=server.options)) == 18

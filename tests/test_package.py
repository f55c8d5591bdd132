"""Contents and metadata of the sdist and the wheel, built without network as by `python -m build`."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from importlib.metadata import Distribution
from pathlib import Path

import pytest

import dali_compat
from dali_compat import cli

setuptools = pytest.importorskip("setuptools", minversion="77", reason="license_expression needs it")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
URL = "https://example.org/somebody/dali_compat"
NOT_IN_SDIST = {".gitignore"}
MADE_BY_SETUPTOOLS = r"PKG-INFO|setup\.cfg|dali_compat\.egg-info/.*"


def project() -> list[str]:
    """Return the paths of the project's files."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        return [name for name in done.stdout.splitlines() if (ROOT / name).exists()]
    found = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file()]
    return [name for name in found if "__pycache__" not in name and not re.fullmatch(MADE_BY_SETUPTOOLS, name)]


def build(kind: str, source: Path, out: Path, url: str) -> Path:
    """Build an "sdist", "wheel" or "editable" from a source folder, and return its path."""
    out.mkdir(parents=True, exist_ok=True)
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(out)!r}))"
    env = {**os.environ, "DALI_COMPAT_URL": url}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, env=env, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    """Unpacked sdist."""
    place = tmp_path_factory.mktemp("package")
    for name in project():
        (place / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / "copy" / name)
    with tarfile.open(build("sdist", place / "copy", place, "")) as archive:
        archive.extractall(place, filter="data")
    return place / f"dali_compat-{dali_compat.__version__}"


@pytest.fixture(scope="module")
def wheel(sdist) -> Path:
    """Unpacked wheel, built from the sdist as pip does."""
    with zipfile.ZipFile(build("wheel", sdist, sdist.parent / "wheel", "")) as archive:
        archive.extractall(sdist.parent / "site")
    return sdist.parent / "site"


def metadata(site: Path):
    (text,) = [path.read_text(encoding="utf-8") for path in site.glob("*.dist-info/METADATA")]
    return Parser().parsestr(text)


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_sdist_is_the_whole_project(sdist):
    there = {name for name in names(sdist) if not re.fullmatch(MADE_BY_SETUPTOOLS, name)}
    there = {name for name in there if not name.startswith("build/")}  # left by building the wheel
    assert there == set(project()) - NOT_IN_SDIST


def test_the_wheel_is_the_package_and_its_licence(wheel):
    package = {name for name in project() if name.startswith("dali_compat/")}
    info = f"dali_compat-{dali_compat.__version__}.dist-info"
    about = {
        f"{info}/{name}"
        for name in ("METADATA", "RECORD", "WHEEL", "top_level.txt", "entry_points.txt", "licenses/LICENSE")
    }
    assert names(wheel) == package | about
    assert (wheel / info / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert "Root-Is-Purelib: true" in (wheel / info / "WHEEL").read_text()


def test_a_clone_in_the_working_directory_does_not_shadow_an_editable_install(sdist, tmp_path):
    """With an editable install, a program may start in a folder that contains a clone."""
    with zipfile.ZipFile(build("editable", sdist, sdist.parent / "editable", "")) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "dali_compat").mkdir()
    find = f"site.addsitedir({str(tmp_path / 'site')!r}); print(importlib.util.find_spec('dali_compat').origin)"
    # which may contain the package as well
    command = [sys.executable, "-E", "-S", "-c", f"import importlib.util, site; {find}"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(sdist / "dali_compat" / "__init__.py")


def test_metadata_has_name_versions_extras_and_licence(wheel):
    about = metadata(wheel)
    assert about["Name"] == "dali_compat" and about["Version"] == dali_compat.__version__
    assert about["License-Expression"] == "Apache-2.0" and about["Requires-Python"] == ">=3.10"
    extras = {"cuda110", "cuda120", "cuda130", "archives", "examples", "remote", "test"}
    assert set(about.get_all("Provides-Extra")) == extras
    needed = [line for line in about.get_all("Requires-Dist") if "extra ==" not in line]
    assert {re.match(r"[\w-]+", line)[0] for line in needed} >= {"torch", "torchvision", "numpy", "pillow"}
    assert not any("dali" in line for line in needed)  # DALI is only in extras
    of_examples = {line.split(";")[0] for line in about.get_all("Requires-Dist") if 'extra == "examples"' in line}
    of_tests = {line.split(";")[0] for line in about.get_all("Requires-Dist") if 'extra == "test"' in line}
    assert of_examples >= {"lightning", "pytorch-ignite", "pyyaml"} and of_examples <= of_tests
    assert "Typing :: Typed" in about.get_all("Classifier")
    assert about["Description-Content-Type"] == "text/markdown"


def rendered(text: str) -> str:
    """Render Markdown as PyPI does."""
    return pytest.importorskip("readme_renderer.markdown").render(text)


def test_description_without_an_address_has_only_absolute_links(wheel):
    about = metadata(wheel)
    text = about.get_payload()
    assert about.get_all("Project-URL") is None
    assert "# dali_compat" in text and "pip install" in text
    assert set(re.findall(r"\]\(([a-z]+:|#)?", text)) == {"https:"}
    assert "![" not in text and "*Loading and training speed" in text


def test_description_with_an_address_links_to_existing_files(sdist, tmp_path):
    """Links refer to the tag of this version."""
    with zipfile.ZipFile(build("wheel", sdist, tmp_path / "wheel", f"{URL}/")) as archive:
        archive.extractall(tmp_path / "site")
    about = metadata(tmp_path / "site")
    text = about.get_payload()
    tag = f"v{dali_compat.__version__}"
    places = dict(line.split(", ") for line in about.get_all("Project-URL"))
    assert places["Source"] == URL and places["Changelog"] == f"{URL}/blob/{tag}/CHANGELOG.md"
    for target in [*places.values(), *re.findall(r"\]\(([^)\s]+)\)", text)]:
        kind, _, path = target.removeprefix(f"{URL}/").partition(f"/{tag}/")
        if path:
            assert kind in ("raw", "blob") and (ROOT / path.partition("#")[0]).is_file(), target
        else:
            assert target in (URL, f"{URL}/issues") or not target.startswith(URL), target
            assert target.startswith("https://"), target
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    rendered = re.findall(r"!\[[^\]]*\]\((docs/[^)]+)\)", (ROOT / "README.md").read_text())
    assert rendered and pictures == [f"{URL}/raw/{tag}/{picture}" for picture in rendered]


def test_description_renders_as_on_pypi(wheel):
    html = rendered(metadata(wheel).get_payload())
    assert html.count("<table") == 2 and "<h1" in html
    assert "<pre" in html and "<img" not in html and "](" not in html


def test_console_script_is_cli_main(wheel):
    (found,) = Distribution.at(next(wheel.glob("*.dist-info"))).entry_points.select(group="console_scripts")
    assert found.name == "dali_compat" and found.load() is cli.main


def test_wheel_imports_and_runs_without_the_checkout(wheel, tmp_path):
    """Run in an empty folder, so that files missing from the wheel are noticed."""
    code = "import dali_compat as d; [getattr(d, name) for name in d.__all__]; print(d.__file__)"
    env = {**os.environ, "PYTHONPATH": str(wheel), "PYTHONSAFEPATH": "1"}

    def python(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=env, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert Path(python("-c", code).strip()).is_relative_to(wheel)
    assert "demo" in python("-m", "dali_compat", "--help")

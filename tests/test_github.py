""".github/ and packaging/: pinned actions, versions, and commands that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import dali_compat
from dali_compat import cli

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
SETUP = (ROOT / "setup.py").read_text()


def workflow(name: str) -> dict:
    return yaml.safe_load((GITHUB / "workflows" / f"{name}.yml").read_text())


def steps(found: dict) -> list[dict]:
    return [step for job in found["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_permissions_are_read_only(path):
    uses = re.findall(r"uses: (.*)", path.read_text())
    assert uses and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", one) for one in uses), uses
    found = yaml.safe_load(path.read_text())
    assert found["permissions"] == {"contents": "read"}
    assert all("${{" not in step.get("run", "") or "matrix." in step["run"] for step in steps(found))


def test_each_action_is_used_in_one_version():
    uses = {line for path in WORKFLOWS for line in re.findall(r"uses: (\S+)", path.read_text())}
    assert len(uses) == len({use.partition("@")[0] for use in uses})


def test_matrix_has_the_versions_named_in_setup_py():
    matrix = workflow("tests")["jobs"]["tests"]["strategy"]["matrix"]
    minors = re.search(r"minor in range\((\d+), (\d+)\)", SETUP).groups()
    assert matrix["python"] == [f"3.{minor}" for minor in range(*map(int, minors))]
    (oldest,) = matrix["include"]
    assert f'python_requires=">={oldest["python"]}"' in SETUP and oldest["versions"] not in matrix["versions"]
    for name, lowest in ("torchvision", "0.20"), ("nvidia-dali-cuda120", "1.53"):
        assert f'"{name}>={lowest}"' in SETUP and f"{name}=={lowest}.*" in oldest["install"]
    for extra in re.findall(r"\[(.*?)\]", " ".join([*matrix["install"], oldest["install"]])):
        assert all(f'"{name}": ' in SETUP for name in extra.split(","))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_commands_and_scripts_exist(path):
    for step in steps(yaml.safe_load(path.read_text())):
        words = step.get("run", "").split()
        if words[:3] == ["python", "-m", "dali_compat"]:
            assert words[3] in cli.COMMANDS
        if words[:1] == ["bash"]:
            assert (ROOT / words[1]).is_file()


def test_a_release_is_checked_before_it_is_published():
    found = workflow("release")
    runs = [step["run"] for step in found["jobs"]["build"]["steps"] if "run" in step]
    assert [run.split()[0] for run in runs] == ["pip", "python", "test", "twine", "check-wheel-contents"]
    assert found["jobs"]["publish"]["needs"] == "build" and found["jobs"]["publish"]["environment"] == "pypi"
    assert found[True] == {"push": {"tags": ["v*"]}}  # YAML parses "on" as a boolean


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="needs actionlint")
def test_actionlint_accepts_the_workflows():
    subprocess.run(["actionlint"], cwd=ROOT, check=True)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_ask_for_explain_output(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"] and form["labels"]
    names = [part["id"] for part in form["body"]]
    assert len(names) == len(set(names)) and "explain" in names
    assert {part["type"] for part in form["body"]} <= {"textarea", "checkboxes"}


def test_bug_form_requires_the_output_of_doctor():
    (doctor,) = [
        part
        for part in yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / "bug.yml").read_text())["body"]
        if part["id"] == "doctor"
    ]
    command = re.search(r"`python -m dali_compat (.*)`", doctor["attributes"]["label"])[1]
    assert command == "doctor --json" and doctor["validations"] == {"required": True}


def test_citation_has_the_current_version_and_licence():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == dali_compat.__version__ and f'license_expression="{cited["license"]}"' in SETUP


def test_badges_match_the_package_metadata():
    minors = re.search(r"minor in range\((\d+), (\d+)\)", SETUP).groups()
    expected = {"python": f"Python 3.{minors[0]} to 3.{int(minors[1]) - 1}", "licence": "Licence Apache-2.0"}
    shown = re.findall(r"!\[(.*?)\]\(docs/badges/(\w+)\.svg\)", (ROOT / "README.md").read_text())
    assert {name: text.replace(":", "") for text, name in shown} == expected
    for name, text in expected.items():
        drawn = (ROOT / "docs" / "badges" / f"{name}.svg").read_text()
        assert f"<title>{text}</title>" in drawn and " ".join(re.findall(r"<text .*?>(.*?)</text>", drawn)) == text


SITE = (ROOT / "packaging" / "mkdocs.yml").read_text()


def test_site_navigation_has_every_page():
    pages = set(re.findall(r": ([\w/.-]+\.md)$", SITE, re.MULTILINE))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} == {page for page in pages if "/" not in page} - {
        "reference.md"
    }
    assert all((ROOT / page.removeprefix("repository/")).is_file() for page in pages if "/" in page)


def test_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocstrings")
    command = ["mkdocs", "build", "--strict", "-f", str(ROOT / "packaging" / "mkdocs.yml"), "-d", str(tmp_path)]
    subprocess.run(command, check=True)
    assert "class=" in (tmp_path / "reference.html").read_text()
    assert 'src="batch.jpg"' in (tmp_path / "index.html").read_text()  # README.md is the first page


def test_conda_recipe_requires_the_package_requirements():
    recipe = yaml.safe_load((ROOT / "packaging" / "recipe.yaml").read_text().replace("${{", "").replace("}}", ""))
    assert recipe["context"]["version"] == dali_compat.__version__
    (listed,) = re.findall(r"install_requires=\[(.*?)\],\n    extras", SETUP, re.DOTALL)
    needed = {re.split(r"[>=]", name)[0] for name in re.findall(r'"([^"]+)"', listed)}
    run = {line.split()[0] for line in recipe["requirements"]["run"]}
    assert {"pytorch" if name == "torch" else name for name in needed} <= run and "nvidia-dali-python" in run


def test_containers_enable_video_and_copy_existing_files():
    text = (ROOT / "packaging" / "Dockerfile").read_text()
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video" in text
    assert container["containerEnv"]["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility,video"
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).resolve() == ROOT / "packaging" / "Dockerfile"
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for word in line.split()]
    assert len(copied) == 5 and all((ROOT / word).exists() for word in copied)
    extras = ",".join(re.findall(r"\.\[([\w,]+)\]", text + container["postCreateCommand"])).split(",")
    assert all(f'"{name}": ' in SETUP for name in extras)

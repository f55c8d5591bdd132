"""The rooms of the package: which may import which. Imports under TYPE_CHECKING and within functions count, too."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dali_compat"
TOP = "dali_compat"

# What each room may import, besides itself. A module at the top is a room of its own.
COMMON = {"errors", "plan", "randoms", "runtime"}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "plan": set(),
    "randoms": set(),
    "runtime": {"errors"},
    "archives": {"errors", "remote", "runtime"},
    "remote": {"errors", "runtime"},
    "data": {"archives", "inspection", "remote", *COMMON},
    "inspection": {"errors", "plan", "runtime"},
    "ops": {"inspection", *COMMON},
    "translate": {"inspection", "ops", *COMMON},
    "engine": {"data", "ops", *COMMON},
    "tracing": {"data", "inspection", "ops", "translate", *COMMON},
    "routes": {"data", "engine", "inspection", "ops", "tracing", "translate", *COMMON},
    "epoch": {"data", "engine", "ops", "remote", "routes", "tracing", "translate", *COMMON},
    "loader": {"data", "epoch", "routes", *COMMON},
    "patch": {"data", "loader", "routes", "tracing", *COMMON},
    "cli": {"archives", "data", "engine", "patch", "remote", "routes", "translate", *COMMON},
}
# Commands use the package as users do, by its name.
BY_NAME = {"cli", "__main__"}


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(source: str, module: str, is_package: bool = False) -> set[str]:
    """Full names of what a module's text imports: modules, and names within modules."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *filter(None, [node.module])])
            found |= {f"{origin}.{alias.name}" for alias in node.names}
    return found


def _imports(module: str) -> set[str]:
    path = MODULES[module]
    return imported(path.read_text(), module, path.name == "__init__.py")


def _module_of(name: str) -> str | None:
    """The module of the package that holds an imported name."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


def arrows() -> dict[str, set[str]]:
    """Modules of the package, and those that each imports."""
    return {
        module: {found for name in _imports(module) if (found := _module_of(name))} - {module, TOP}
        for module in MODULES
        if module != TOP
    }


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of modules that import each other, directly or not: Tarjan, "Depth-first search and linear graph
    algorithms", 1972."""
    numbers, low, stack, found = {}, {}, [], []

    def visit(node: str) -> None:
        numbers[node] = low[node] = len(numbers)
        stack.append(node)
        for to in graph[node]:
            if to not in numbers:
                visit(to)
            if to in stack:
                low[node] = min(low[node], low[to])
        if low[node] == numbers[node]:
            group = stack[stack.index(node) :]
            del stack[-len(group) :]
            found.append(sorted(group))

    for node in graph:
        if node not in numbers:
            visit(node)
    return [group for group in found if len(group) > 1]


def _room(module: str) -> str:
    return module.split(".")[1]


def test_modules_import_each_other_in_no_circle():
    graph = arrows()
    packages = {module for module, path in MODULES.items() if path.name == "__init__.py"}
    # a package's __init__ that gathers its modules is not imported by these; "from . import x" names x
    assert circles({module: to - packages if module not in packages else to for module, to in graph.items()}) == []


def test_every_room_imports_what_it_may_alone():
    wrong = [
        f"{module} imports {to}"
        for module, targets in arrows().items()
        for to in sorted(targets)
        if _room(module) not in ("__main__",) and _room(to) not in ({_room(module)} | ROOMS[_room(module)])
    ]
    assert wrong == []


def test_every_room_is_named_here():
    assert {_room(module) for module in MODULES if module != TOP} - {"__main__"} == set(ROOMS)


def test_rooms_form_no_circle():
    assert circles(ROOMS) == []


def test_the_package_is_imported_by_its_name_in_commands_alone():
    wrong = [module for module in MODULES if module != TOP and TOP in {n.split(".")[0] for n in _absolute(module)}]
    assert {_room(module) for module in wrong} <= BY_NAME


def _absolute(module: str) -> set[str]:
    tree = ast.parse(MODULES[module].read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}


def _users(prefix: str) -> set[str]:
    """Modules that import something whose name begins so."""
    return {module for module in MODULES if any(f"{name}.".startswith(prefix + ".") for name in _imports(module))}


def test_dali_is_imported_in_its_room_alone():
    users = {module for module in _users("nvidia") if not module.startswith(f"{TOP}.engine.dali.")}
    assert users == set()
    assert f"{TOP}.engine.dali.pipeline" in _users("nvidia")


FUNCTIONS = (
    "torchvision.transforms.functional",
    "torchvision.transforms._functional_tensor",
    "torchvision.transforms.v2.functional",
)


@pytest.mark.parametrize("room", ["engine", "epoch", "routes", "data", "archives", "runtime", "ops.pixels"])
def test_torchvisions_transforms_are_not_known_outside_of_operations(room):
    """Its functions may be used anywhere."""
    found = {}
    for module in MODULES:
        if f"{module}.".startswith(f"{TOP}.{room}."):
            names = {n for n in _imports(module) if n.startswith("torchvision.transforms")}
            found[module] = {n for n in names if not n.startswith(FUNCTIONS) and not n.endswith(".InterpolationMode")}
    assert len(found) > 4 and not any(found.values())


def test_kernels_take_numbers_to_a_gpu_by_to_device():
    """Which waits for nothing that the GPU has to do before; a copy from ordinary memory may."""
    kernels = {module: path for module, path in MODULES.items() if module.startswith(f"{TOP}.ops")}
    assert len(kernels) > 10
    assert [module for module, path in kernels.items() if "non_blocking" in path.read_text()] == []


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_imports_are_found_wherever_they_stand():
    text = "from .. import x\nif TYPE_CHECKING:\n    from .a import B\ndef f():\n    import nvidia.dali as dali\n"
    assert imported(text, "p.q.m") == {"p.x", "p.q.a.B", "nvidia.dali"}
    assert imported("from .a import b", "p.q", is_package=True) == {"p.q.a.b"}

"""Import rules between the subpackages. Imports under TYPE_CHECKING and in functions count as well."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dali_compat"
TOP = "dali_compat"

# The subpackages and top-level modules that each of them may import.
COMMON = {"errors", "plan", "randoms", "runtime"}
ALLOWED_IMPORTS: dict[str, set[str]] = {
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
# Commands import the package by its public name, as users do.
BY_NAME = {"cli", "__main__"}


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(source: str, module: str, is_package: bool = False) -> set[str]:
    """Return the full names of the modules and attributes that a source text imports."""
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
    """Return the package's module that contains an imported name."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


def import_graph() -> dict[str, set[str]]:
    """Return the modules of the package and the modules that each of them imports."""
    return {
        module: {found for name in _imports(module) if (found := _module_of(name))} - {module, TOP}
        for module in MODULES
        if module != TOP
    }


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one module (Tarjan, "Depth-first search and linear graph
    algorithms", 1972)."""
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


def _subpackage(module: str) -> str:
    return module.split(".")[1]


def test_modules_have_no_import_cycle():
    graph = import_graph()
    packages = {module for module, path in MODULES.items() if path.name == "__init__.py"}
    # A package's __init__ that collects its modules is not imported by them; "from . import x" refers to x.
    assert cycles({module: to - packages if module not in packages else to for module, to in graph.items()}) == []


def test_subpackages_import_only_what_the_rules_allow():
    wrong = [
        f"{module} imports {to}"
        for module, targets in import_graph().items()
        for to in sorted(targets)
        if _subpackage(module) not in ("__main__",)
        and _subpackage(to) not in ({_subpackage(module)} | ALLOWED_IMPORTS[_subpackage(module)])
    ]
    assert wrong == []


def test_import_rules_cover_every_subpackage():
    assert {_subpackage(module) for module in MODULES if module != TOP} - {"__main__"} == set(ALLOWED_IMPORTS)


def test_import_rules_have_no_cycle():
    assert cycles(ALLOWED_IMPORTS) == []


def test_only_commands_import_the_package_by_its_name():
    wrong = [module for module in MODULES if module != TOP and TOP in {n.split(".")[0] for n in _absolute(module)}]
    assert {_subpackage(module) for module in wrong} <= BY_NAME


def _absolute(module: str) -> set[str]:
    tree = ast.parse(MODULES[module].read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}


def _users(prefix: str) -> set[str]:
    """Return the modules that import a name with this prefix."""
    return {module for module in MODULES if any(f"{name}.".startswith(prefix + ".") for name in _imports(module))}


def test_dali_is_imported_only_in_engine_dali():
    users = {module for module in _users("nvidia") if not module.startswith(f"{TOP}.engine.dali.")}
    assert users == set()
    assert f"{TOP}.engine.dali.pipeline" in _users("nvidia")


FUNCTIONS = (
    "torchvision.transforms.functional",
    "torchvision.transforms._functional_tensor",
    "torchvision.transforms.v2.functional",
)


@pytest.mark.parametrize("room", ["engine", "epoch", "routes", "data", "archives", "runtime", "ops.pixels"])
def test_transform_classes_are_not_imported_outside_of_operations(room):
    """Only their functional API may be used anywhere."""
    found = {}
    for module in MODULES:
        if f"{module}.".startswith(f"{TOP}.{room}."):
            names = {n for n in _imports(module) if n.startswith("torchvision.transforms")}
            found[module] = {n for n in names if not n.startswith(FUNCTIONS) and not n.endswith(".InterpolationMode")}
    assert len(found) > 4 and not any(found.values())


def test_kernels_copy_to_the_gpu_only_with_to_device():
    """to_device() does not wait for earlier work of the GPU; a copy from pageable memory may."""
    kernels = {module: path for module, path in MODULES.items() if module.startswith(f"{TOP}.ops")}
    assert len(kernels) > 10
    assert [module for module, path in kernels.items() if "non_blocking" in path.read_text()] == []


def test_cycles_finds_each_cycle_of_a_graph():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_imported_finds_relative_nested_and_type_checking_imports():
    text = "from .. import x\nif TYPE_CHECKING:\n    from .a import B\ndef f():\n    import nvidia.dali as dali\n"
    assert imported(text, "p.q.m") == {"p.x", "p.q.a.B", "nvidia.dali"}
    assert imported("from .a import b", "p.q", is_package=True) == {"p.q.a.b"}

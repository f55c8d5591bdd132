"""Calls to torch.cuda must name their GPU, since the current device may not be the right one."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dali_compat"

OF_NO_DEVICE = {"is_available", "is_initialized", "init", "device_count", "_is_in_bad_fork"}
# functions of the current device, allowed only within ``with torch.cuda.device(...)``
WITHIN = {"cudart"}
# functions that resolve a missing device or "cuda" to the current device
CURRENT = {("routes/__init__.py", "resolve_device", "current_device")}


def calls(source: str) -> list[tuple[str, str, int, bool, bool]]:
    """Return the calls to torch.cuda functions in a source text.

    Each is (enclosing function, name, line, whether it has arguments, whether it is in ``with torch.cuda.device()``).
    """
    found = []

    def visit(node: ast.AST, function: str, within: bool) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            function, within = getattr(node, "name", function), False
        if isinstance(node, ast.Call) and (name := _of_cuda(node.func)):
            found.append((function, name, node.lineno, bool(node.args or node.keywords), within))
        if isinstance(node, ast.With):
            inside = within or any(
                isinstance(item.context_expr, ast.Call) and _of_cuda(item.context_expr.func) == "device"
                for item in node.items
            )
            for item in node.items:
                visit(item, function, within)
            for child in node.body:
                visit(child, function, inside)
            return
        for child in ast.iter_child_nodes(node):
            visit(child, function, within)

    visit(ast.parse(source), "", False)
    return found


def _of_cuda(function: ast.expr) -> str | None:
    text = ast.unparse(function)
    return text.removeprefix("torch.cuda.") if text.startswith("torch.cuda.") and "(" not in text else None


def calls_without_device(source: str, path: str = "") -> list[str]:
    """Return the calls that do not name a GPU."""
    return [
        f"{path}:{line} torch.cuda.{name}()"
        for function, name, line, named, within in calls(source)
        if name not in OF_NO_DEVICE
        and (path, function, name) not in CURRENT
        and not (within if name in WITHIN else named or within)
    ]


def test_every_torch_cuda_call_names_its_device():
    paths = sorted(PACKAGE.rglob("*.py"))
    wrong = [
        line for path in paths for line in calls_without_device(path.read_text(), path.relative_to(PACKAGE).as_posix())
    ]
    assert wrong == []
    assert sum(len(calls(path.read_text())) for path in paths) > len(OF_NO_DEVICE)


def test_torch_cuda_is_called_by_its_full_name():
    """The check above finds only calls by full name."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("torch.cuda"), path
                assert node.module != "torch" or "cuda" not in {alias.name for alias in node.names}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
                raise AssertionError(f"{path}:{node.lineno} .cuda() is for the current device")


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("torch.cuda.current_stream()", 1),
        ("torch.cuda.current_stream(device)", 0),
        ("torch.cuda.Stream()", 1),
        ("torch.cuda.synchronize()", 1),
        ("with torch.cuda.device(1):\n    torch.cuda.synchronize()", 0),
        ("with torch.cuda.device(1):\n    def later():\n        torch.cuda.synchronize()", 1),
        ("with torch.cuda.device(torch.cuda.current_device()):\n    pass", 1),
        ("torch.cuda.cudart().cudaHostUnregister(pointer)", 1),
        ("with torch.cuda.device(1):\n    torch.cuda.cudart().cudaHostUnregister(pointer)", 0),
        ("torch.cuda.is_available()", 0),
    ],
)
def test_calls_without_device_are_found(text, wrong):
    assert len(calls_without_device(text)) == wrong

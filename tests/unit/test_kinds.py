"""Each transform has its draw and kernels in the module of its kind.

Failures name the missing part and the file to edit.
"""

from pathlib import Path

import pytest
from parity.catalogue import ANSWERS, TRANSFORMS, answers

from dali_compat import ops
from dali_compat.ops import draws as drawn
from dali_compat.ops.translators import _TRANSLATORS, LAZY_MODULES
from dali_compat.plan import OPERATIONS, ImageSpec, Operation, Options, Step, draw, step
from unit.operations import ROWS, every_row, kind_of, own_steps

OPS = Path(ops.__file__).parent
# Draws used by several kinds, defined in ops/draws.py.
SHARED = {
    "bernoulli": "flips, colours and sharpness are applied or not",
    "random_key": "ElasticTransform and GaussianNoise make random pixels of it",
}
# Kinds whose translators also create steps of another kind.
BORROWS = {"resize": {"windows"}}


def draws_missing(kind: str, s: Step) -> list[str]:
    """List missing or misplaced parts of a step's draw."""
    if s.draw is None:
        return []
    name = s.draw.name
    if name not in drawn._DRAWS:
        return [f"no draw is registered as {name!r}: define draw_{name} in ops/{kind}.py with @draws"]
    found, wrong = kind_of(drawn._DRAWS[name][1]), []
    if found not in ({"draws"} if name in SHARED else {kind, *BORROWS.get(kind, ())}):
        wrong.append(f"{name} is drawn in ops/{found}.py: move draw_{name} to ops/{kind}.py, where its translator is")
    if drawn.is_random(s) and name not in ANSWERS:
        wrong.append(f"draw_{name} has no answers for torchvision: write them in tests/parity/catalogue.py")
    return wrong


def kernels_missing(kind: str, s: Step) -> list[str]:
    """List missing or misplaced parts of a step's kernels."""
    own_steps = OPERATIONS.get(s.op, Operation(s.op))
    if own_steps.unchanged or s.op == "choose":
        return []
    lowered, wrong = own_steps.lowered(s, Options(), False), []
    op = lowered.op
    kernel = OPERATIONS.get(op, own_steps).kernel
    if lowered.draw is not None and lowered.draw.name not in drawn._DRAWS:
        wrong.append(f"no draw is registered as {lowered.draw.name!r}: define it in ops/{kind}.py with @draws")
    if kernel is None:
        wrong.append(
            f"no kernel is registered for {op!r}: define it in ops/{kind}.py with @kernel, and its argument image= "
            f"unless it is exact to the last bit"
        )
    elif own_steps.image is None and own_steps.kernel is None:  # lowered: another op implements it
        wrong.append(f"{s.op!r} cannot run on one image: write it in ops/{kind}.py, @image_kernel({s.op!r})")
    found = [f for f in (kernel, own_steps.image) if f is not None]
    kinds = {kind, *BORROWS.get(kind, ())}
    return wrong + [
        f"{f.__qualname__} is in {f.__module__}: move it to ops/{kind}.py" for f in found if kind_of(f) not in kinds
    ]


def test_catalogue_has_one_row_per_registered_transform():
    """tests/parity/measure.py and the tests of the rows below use these rows."""
    names = [entry.name for entry in TRANSFORMS]
    registered = {kind.__name__ for kind in _TRANSLATORS if of_torch(kind)}
    no_row, no_translator = registered - set(names), set(names) - registered
    assert not no_row, "write a row in tests/parity/catalogue.py"
    assert not no_translator, "write a translator in ops/<kind>.py"
    assert len(names) == len(set(names))


def of_torch(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("torch", "torchvision")


@every_row
def test_transform_has_draw_and_kernels_in_the_module_of_its_kind(entry, version):
    kind, steps = own_steps(entry, version)
    missing = [wrong for s in steps for wrong in (*draws_missing(kind, s), *kernels_missing(kind, s))]
    missing = list(dict.fromkeys(missing))  # the kernel check reports a missing draw again
    assert not missing, "\n".join(missing)  # the whole text, which pytest would truncate


def test_missing_parts_are_reported_with_their_file():
    """This also shows that the tests above can fail."""
    nothing = step("no_such_op", ImageSpec(), draw("no_such_draw"))
    assert "ops/color.py" in draws_missing("color", nothing)[0]
    assert ["with @draws" in wrong for wrong in kernels_missing("color", nothing)] == [True, False]
    assert all("ops/color.py" in wrong for wrong in kernels_missing("color", nothing))
    blur = step("gaussian_blur", ImageSpec(), draw("blur_sigma", sigma=(1, 2)))
    assert draws_missing("filters", blur) == kernels_missing("filters", blur) == []
    assert "to ops/color.py" in draws_missing("color", blur)[0]
    assert len(kernels_missing("color", blur)) == 2


def test_shared_draws_are_used_by_several_kinds():
    users: dict[str, set[str]] = {}
    for entry, version in ROWS:
        kind, steps = own_steps(entry, version)
        for s in steps:
            if s.draw is not None:
                users.setdefault(s.draw.name, set()).add(kind)
    assert {name for name, kinds in users.items() if len(kinds) > 1} == set(SHARED)


def test_borrowed_kinds_are_used():
    for kind, others in BORROWS.items():
        steps = [
            s for entry, version in ROWS for found, made in [own_steps(entry, version)] if found == kind for s in made
        ]
        assert others <= {kind_of(s.operation.kernel) for s in steps}


def test_every_module_of_ops_is_imported():
    names = {path.stem for path in OPS.glob("*.py")}
    assert names > LAZY_MODULES and all(hasattr(ops, name) for name in names - {"__init__", *LAZY_MODULES})


def test_draw_without_answers_raises_with_the_file_name(monkeypatch):
    monkeypatch.delitem(ANSWERS, "blur_sigma")
    blur = step("gaussian_blur", ImageSpec(), draw("blur_sigma", sigma=(1, 2)))
    with pytest.raises(NotImplementedError, match=r"draw_blur_sigma .*catalogue.py"):
        answers(blur, {})
    assert draws_missing("filters", blur) == [
        "draw_blur_sigma has no answers for torchvision: write them in tests/parity/catalogue.py"
    ]


def test_registering_a_draw_twice_raises():
    with pytest.raises(ValueError, match=r"already registered in .*draws"):

        @drawn.draws(uniforms=1)
        def draw_bernoulli(sizes, u):
            """Never registered."""

"""Every public name has its own docstring, and the docstring names each argument."""

import inspect
import re

import pytest

import dali_compat

NAMES = sorted(set(dali_compat.__all__) - {"DALIDataLoader"})  # an alias of DataLoader
_ENTRY = re.compile(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*): \S", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):\n((?:    .*\n|\n)+)", re.MULTILINE)


def own_docstring(thing) -> str:
    """Return a docstring that is not inherited, without indentation; "" if there is none."""
    text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    return inspect.cleandoc(text or "") + "\n"


def sections(text: str) -> dict[str, list[str]]:
    """Return the entry names of each section."""
    return {
        title: [name.lstrip("*") for entry in _ENTRY.findall(body) for name in entry.split(", ")]
        for title, body in _SECTION.findall(text)
    }


def named(text: str) -> set[str]:
    """Return the arguments that a docstring mentions, as entries or in a sentence between double backticks."""
    return {*sections(text).get("Args", []), *re.findall(r"``(\w+)(?:=[^`]*)?``", text)}


def arguments(thing) -> list[str]:
    return [name.lstrip("*") for name in inspect.signature(thing).parameters if name != "self"]


def members(kind: type) -> list[str]:
    """Return the public methods and properties that a class of this package or its bases define."""
    found = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("dali_compat"):
            found |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    fields = set(getattr(kind, "_fields", ()))
    return [
        name
        for name, value in found.items()
        if name not in fields and (callable(value) or isinstance(inspect.getattr_static(kind, name), property))
    ]


CLASSES = [name for name in NAMES if inspect.isclass(getattr(dali_compat, name))]
MEMBERS = [f"{name}.{member}" for name in CLASSES for member in members(getattr(dali_compat, name))]


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_a_docstring_with_its_arguments(name):
    thing = getattr(dali_compat, name)
    text = own_docstring(thing)
    assert text.strip()
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return
    if hasattr(thing, "_fields"):
        assert sections(text)["Attributes"] == list(thing._fields)
        return
    assert set(arguments(thing)) <= named(text)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_method_has_a_docstring_with_its_arguments(name):
    kind, _, member = name.partition(".")
    thing = inspect.getattr_static(getattr(dali_compat, kind), member)
    text = own_docstring(thing)
    assert text.strip()
    if inspect.isfunction(thing):
        assert set(arguments(thing)) <= named(text)


@pytest.mark.parametrize("name", NAMES)
def test_no_docstring_names_an_argument_that_does_not_exist(name):
    thing = getattr(dali_compat, name)
    documented = sections(own_docstring(thing)).get("Args", [])
    known = set(arguments(thing)) if documented else set()
    if name == "DataLoader":
        known |= {"in_order"}  # added in torch 2.6
    assert len(documented) == len(set(documented)) and set(documented) <= known


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_refer_only_to_public_classes(name):
    """Other classes have no help()."""
    for there in re.findall(r"\bas in ([A-Z]\w+)", own_docstring(getattr(dali_compat, name))):
        assert there in dali_compat.__all__


def test_sections_and_named_parse_a_docstring():
    text = inspect.cleandoc(
        """Does it, with ``here=True`` or ``there``.

        Args:
            one: a
                longer: line.
            two, *three: more.

        Raises:
            ValueError: it cannot.
        """
    )
    assert sections(text + "\n") == {"Args": ["one", "two", "three"], "Raises": ["ValueError"]}
    assert named(text + "\n") == {"one", "two", "three", "here", "there"}

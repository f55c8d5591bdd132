"""Random wrappers: the transforms that are found equal those that Python applies.

python tests/unit/test_random_wrappers.py 50000 [SEED]    # prints the source of each wrong program
"""

from __future__ import annotations

import collections
import importlib.util
import random
import signal
import sys
import tempfile
from pathlib import Path

from dali_compat.inspection.evaluator import NotUnderstood
from dali_compat.inspection.wrappers import find_transforms

PROGRAMS = 400


class Image:
    """Records the names of the transforms. It raises an error for any use but as an argument."""

    def __init__(self, path=()):
        self.path = path

    def convert(self, mode):
        return Image((*self.path, mode))

    def __eq__(self, other):
        raise TypeError

    def __bool__(self):
        raise TypeError

    __hash__ = None


class Tag:
    def __init__(self, name):
        self.name = name

    def __call__(self, image):
        return Image((*image.path, self.name))


HEAD = """
W, V, N, K = Tag("W"), Tag("V"), 2, 1
LIST, DICT = [Tag("L0"), Tag("L1")], {"x": Tag("dx"), "y": Tag("dy")}
def one(im, t=W, *, u=None):
    return t(im) if u is None else u(t(im))
part = functools.partial(one, u=V)
class Module:
    def __call__(self, im): return self.q(im)
MODULE = Module()
MODULE.q = Tag("q")
"""
START = ["x = [im]", "y, z = [], [W(im), im]", "p, q = im, V(im)", "n, t, u = 1, W, me.v"]


class Generator:
    """Generates source code, mostly with the right types. ``depth`` limits the nesting."""

    def __init__(self, rng):
        self.rng = rng

    def pick(self, *texts):
        return self.rng.choice(texts)

    def is_noisy(self):
        return self.rng.random() < 0.03

    def transform(self):
        named = self.pick("W", "V", "t", "u", "one", "part", "MODULE", "me.w", "me.v", "me.shared", "me.helper")
        return self.pick(named, named, named, "me.ts[0]", "me.ts[me.k - 1]", "LIST[1]", 'DICT["x"]')

    def transforms(self):
        values = ("DICT.values()", "[b for a, b in DICT.items()]", "[W, me.v]", "(W, V)")
        return self.pick("me.ts", "LIST", "me.ts", *values)

    def number(self, depth):
        if self.is_noisy():
            return self.anything(depth)
        texts = ("0", "1", "2", "3", "N", "K", "n", "me.k", "len(LIST)", "n + 1", "-1", "(K - 1)")
        return self.pick(*texts, "len(x)", "len(many(im, x))", "(len(many(im, x)) + n)")

    def condition(self, depth):
        if depth <= 0:
            return self.pick("n", "x", "not y", "K == 1")
        pairs = f"{self.number(0)} {self.pick('==', '!=', '<', '>=')} {self.number(0)}"
        none = f"{self.pick('None', 'me.w', 'me.none', 't', 'n')} {self.pick('is', 'is not')} None"
        both = f"({self.condition(depth - 1)} {self.pick('and', 'or')} {self.condition(depth - 1)})"
        return self.pick(pairs, none, both, f"not {self.number(0)}")

    def image(self, depth):
        if self.is_noisy():
            return self.anything(depth)
        if depth <= 0:
            return self.pick("im", "im", "im", "p", "q", "x[0]")
        inner, other = self.image(depth - 1), self.image(depth - 1)
        applied = f"{self.transform()}({inner})"
        chosen = f"({inner} if {self.condition(depth - 1)} else {other})"
        named = f"one({inner}, {self.pick('', 't=', 'u=')}{self.transform()})"
        entry = f'{{"x": {inner}, "y": {other}}}["{self.pick("x", "y")}"]'
        element = f"{self.images(depth - 1)}[{self.pick(0, 0, 1, -1)}]"
        return self.pick(applied, applied, applied, applied, chosen, named, entry, element, f'{inner}.convert("RGB")')

    def images(self, depth):
        if self.is_noisy():
            return self.anything(depth)
        if depth <= 0:
            return self.pick("x", "y", "z")
        a, b, many, more = (f(depth - 1) for f in (self.image, self.image, self.images, self.images))
        p, q, t = self.pick("p", "q", "im"), self.pick("p", "q"), self.pick("t", "u")
        loops = [f"[{a} for {p} in {many}]", f"[{t}({a}) for {t} in {self.transforms()}]"]
        loops += [f"[{a} for {p} in {many} for {q} in {more} if {self.condition(1)}]", f"tuple({a} for {p} in {many})"]
        loops += [f"[{t}({a}) for n, {t} in enumerate({self.transforms()})]"]
        loops += [f"[{a} for {p}, {t} in zip({many}, {self.transforms()})]", f"[{a} for _ in range({self.number(0)})]"]
        lists = [f"[{a}, {b}]", f"({a}, {b})", f"[{a}, *{many}]", f"list({many})", f"list(reversed({many}))"]
        lists += [f"([{a}] * {self.number(0)})", f"({many} if {self.condition(1)} else {more})", f"many({a}, {many})"]
        return self.pick(*loops, *lists, f'list({{"x": {a}, "y": {b}}}.values())', f"me.method({a}, {many})")

    def anything(self, depth):
        odd = self.pick(
            "None", "'s'", "me.missing", "me.prop", "undefined", "K", "W", "LIST", "im.size", "me", "im + p"
        )
        return self.pick(odd, self.transform(), self.image(0), self.images(0), self.condition(0))

    def block(self, depth, indent):
        pad, lines = "    " * indent, []
        for _ in range(self.rng.randint(1, 4)):
            name, view = self.pick("x", "y", "z"), self.pick("p", "q")
            simple = [f"{view} = {self.image(2)}", f"{name} = {self.images(2)}", f"{name}.append({self.image(2)})"]
            simple += [f"{name} = {self.pick('x', 'y', 'z')}", f"{name}.extend({self.images(2)})"]
            simple += [f"{name} = ({self.image(1)} for {view} in {self.images(1)})", f"{name} = reversed({name})"]
            simple += [f"p, {self.pick('q', 'im')} = {self.images(2)}", f"{self.pick('t', 'u')} = {self.transform()}"]
            nested = [f"if {self.condition(2)}:", f"for {view} in {self.images(1)}:"]
            nested += [f"for {self.pick('t', 'u')} in {self.transforms()}:"]
            if self.is_noisy():
                lines.append(f"{pad}{self.pick('K', 'LIST', 'me.k', 'me.ts[0]', 'global K')} = {self.anything(1)}")
            elif depth and self.rng.random() < 0.25:
                lines += [pad + self.pick(*nested), *self.block(depth - 1, indent + 1)]
            else:
                lines.append(pad + self.pick(*simple, *simple, f"return {self.image(2)}", f"n = {self.number(1)}"))
        return lines

    def function(self, head, indent):
        pad = "    " * (indent + 1)
        start = [
            pad + line for line in START if self.rng.random() < 0.97 and (not line.startswith("x") or "x" not in head)
        ]
        return ["    " * indent + head, *start, *self.block(2, indent + 1), f"{pad}return {self.images(3)}"]

    def program(self):
        kind = ["class Wrapper:", "    shared, k, none = Tag('shared'), 5, None", "    def __init__(self):"]
        kind += ["        self.w, self.v, self.k, self.ts = Tag('mw'), Tag('mv'), 2, [Tag('s0'), one]"]
        kind += ["    @property", "    def prop(self): return self.w"]
        kind += [f"    def helper(me, im): return {self.pick('me.w(im)', 'me.ts[1](im)', 'one(im, me.v)')}"]
        many = [line.replace("me.", "WRAPPER.") for line in self.function("def many(im, x):", 0)]
        methods = self.function("def method(me, im, x):", 1) + self.function("def __call__(me, im):", 1)
        return "\n".join([HEAD, *many, *kind, *methods, "WRAPPER = Wrapper()", ""])


def result_of(value, depth=0):
    """Return a comparable result of a wrapper."""
    if type(value) is Image:
        return "image", value.path
    if type(value) in (list, tuple) and depth < 40:
        return type(value), [result_of(one, depth + 1) for one in value]
    if type(value) is dict:
        return [(name, result_of(one, depth + 1)) for name, one in value.items()]
    raise TypeError


def found(wrapper):
    """Return the result that the wrapper's code has by find_transforms()."""
    seen = find_transforms(wrapper, lambda kind: kind is Tag)
    names = [getattr(one, "name", "RGB") for one in seen.transforms]
    images = [Image(tuple(names[at] for at in path)) for path in seen.paths]

    def filled(structure):
        if type(structure) is int:
            return images[structure]
        return type(structure)(map(filled, structure))

    return result_of(filled(seen.structure))


def called(wrapper):
    """Return the result of a call, or the class of its error."""

    def stop(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        return result_of(wrapper(Image()))
    except Exception as error:
        return type(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def compare(seed: int, file: Path) -> str:
    """Compare both results of a random wrapper. Return "equal", "refused" or "wrong"."""
    file.write_text(Generator(random.Random(seed)).program())
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    vars(module).update(Tag=Tag, functools=__import__("functools"))
    try:
        spec.loader.exec_module(module)
    except SyntaxError:
        return "refused"
    state = repr((module.LIST, module.DICT, vars(module.WRAPPER)))
    try:
        mine = found(module.WRAPPER)
    except NotUnderstood:
        return "refused"
    finally:
        assert repr((module.LIST, module.DICT, vars(module.WRAPPER))) == state  # no code has run
    return "equal" if mine == called(module.WRAPPER) else "wrong"


def test_transforms_found_in_random_wrappers_equal_those_that_python_applies(tmp_path):
    counts = collections.Counter(compare(seed, tmp_path / f"wrapper_{seed}.py") for seed in range(PROGRAMS))
    assert not counts["wrong"] and counts["equal"] > PROGRAMS / 8, counts


if __name__ == "__main__":
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    total: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + int(sys.argv[1])):
            path = Path(folder) / f"wrapper_{number}.py"
            total[kind := compare(number, path)] += 1
            if kind == "wrong":
                print(number, path.read_text(), sep="\n")
    print(dict(total))

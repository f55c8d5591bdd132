"""Find the transforms that a callable applies, by evaluating its source code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .evaluator import Evaluator, Image, NotUnderstood


class AppliedTransforms(NamedTuple):
    """The transforms that a callable applies to an image, and the structure of its result."""

    structure: Any  # the callable's result, with each image replaced by its index in ``paths``; 0 for a single image
    paths: tuple[tuple[int, ...], ...]  # for each returned image, the indices in ``transforms`` of its transforms
    transforms: tuple[Any, ...]  # in the order of application; a transform that is applied twice occurs twice

    @property
    def chain(self) -> tuple[Any, ...] | None:
        """The transforms applied to the returned image; None if several images are returned."""
        return tuple(self.transforms[at] for at in self.paths[0]) if self.structure == 0 else None


def find_transforms(function, known: Callable[[type], bool]) -> AppliedTransforms:
    """Return the transforms that the callable ``function`` applies to an image.

    Args:
        known: returns True for the class of a transform with a translation.

    Raises:
        NotUnderstood: the callable may do more than apply transforms, or applies none.

    Example::

        class TwoCrops:
            def __call__(self, image):
                return [self.weak(image), self.strong(image)]

        find_transforms(TwoCrops(), known)
        # AppliedTransforms(structure=[0, 1], paths=((0,), (1,)), transforms=(weak, strong))
    """
    evaluator, paths = Evaluator(known), list[tuple[int, ...]]()
    try:
        structure = _structure(evaluator.call(function, (Image(),), {}), paths)
    except NotUnderstood:
        raise
    except Exception as error:
        raise NotUnderstood(f"it raises {type(error).__name__} for a placeholder image") from None
    if not any(paths):
        raise NotUnderstood("")
    return AppliedTransforms(structure, tuple(paths), tuple(evaluator.applied))


def _structure(result, paths: list[tuple[int, ...]]) -> Any:
    """Return ``result`` with each image replaced by the index of its path. Append the paths to ``paths``."""
    kind = type(result)
    if kind is Image:
        paths.append(result.path)
        return len(paths) - 1
    if kind in (list, tuple):
        return kind([_structure(one, paths) for one in result])
    if kind is dict and all(type(key) in (str, int) for key in result):
        return {key: _structure(one, paths) for key, one in result.items()}
    raise NotUnderstood(f"it returns an object that is not an image: {kind.__name__.lower()}")

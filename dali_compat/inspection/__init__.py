"""Inspect the user's objects and code without running them.

The modules, in reading order:

- wrappers: find_transforms() returns the transforms that a callable applies to an image. If it raises NotUnderstood,
  the loader runs the callable itself, as in a custom data set.
- evaluator: evaluates source code. scope: looks up variables. source: finds the syntax tree of a function, and compares
  it with the function's bytecode. method_calls: transforms that stand for calls of image methods.
- objects: inspection of objects, classes and functions.
- replaced: detection of monkeypatched functions of torchvision, timm and Pillow.
- untranslatable: the error for a transform without a translation.
"""

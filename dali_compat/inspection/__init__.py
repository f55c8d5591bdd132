"""Inspect the user's objects and code without running them.

The modules, in reading order:

- wrappers: find_transforms() returns the transforms with a translation that a callable applies. Any other callable is
  loaded as part of a custom data set, so that its code runs unchanged.
- evaluator: evaluates source code. source: the syntax tree of a function, checked against its bytecode. method_calls:
  calls of image methods, as transforms.
- objects: inspection of objects, classes and functions.
- replaced: detection of monkeypatched functions of torchvision, timm and Pillow.
- untranslatable: the error for a transform without a translation.
"""

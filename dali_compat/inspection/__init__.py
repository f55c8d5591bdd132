"""Find out about the user's objects and code without running them.

The modules, in reading order:

- wrappers: find_transforms() reads which known transforms a callable applies. Callables that it does not understand are
  loaded as custom data sets, so that their code runs as it is.
- source: the syntax tree of a function, checked against its bytecode.
- objects: inspection of objects, classes and functions.
- replaced: detection of replaced functions of torchvision, timm or Pillow.
- untranslatable: the error for a transform without a translation.
"""

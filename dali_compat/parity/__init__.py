"""How far each transform is from torchvision, in pixels.

- catalogue: the transforms and recipes that are measured.
- reference: torchvision's own transform objects, which get the numbers that a plan has drawn (dictation).
- measure: the difference. results: kept as JSON. table: the table of docs/transforms.md.
"""

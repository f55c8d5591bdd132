"""Operations that policies and ColorJitter choose for each image of PIL's, in two launches a batch. In torch they are
some hundred, and a host that is busy with a model's launches has no time for these.

- kernels: the two, in Triton. tried: a batch's operations as rows of numbers, and the kernels' launches; whether they
  give what torch gives, on this GPU and with this compiler.

ops/operations uses them. Here are the codes of operations, and of warps' interpolations.
"""

OPERATIONS = (
    "identity",
    *("brightness", "contrast", "posterize", "solarize", "solarize_add", "invert", "autocontrast", "equalize"),
    *("saturation", "sharpness", "hue", "warp"),
)
"""The second line's operations are tables of 256 values, for each channel of an image."""
CODES = {name: code for code, name in enumerate(OPERATIONS)}
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")

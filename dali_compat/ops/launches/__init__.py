"""Operations that policies and ColorJitter choose for each image of PIL's, in two launches a batch. In torch they are
some hundred, and a host that is busy with a model's launches has no time for these.

- codes: of the operations. rows: what the kernels have to know of each image, and their launches. kernels: the two, in
  Triton.
- tried: whether they give what torch gives, on this GPU and with this compiler.

ops/operations uses them.
"""

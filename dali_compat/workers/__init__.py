"""Calls functions without a translation, sample by sample.

In the order to read them:

- calls: gives a batch's images to the functions, in this process or in others. called: what they have given.
- worker: the functions at work.
- pool: the processes of one call. processes: how they are started, asked, watched and ended, whatever they do.
- images, samples: what travels there and back. shared_memory: in which memory.
"""

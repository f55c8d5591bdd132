"""Calls functions without a translation, sample by sample.

In the order to read them:

- calls: gives a batch's images to the functions, in this process or in others, and takes what they give.
- worker: the functions at work.
- processes: how they are started, asked, watched and ended, whatever they do.
- samples: what travels there and back. shared_memory: in which memory.
"""

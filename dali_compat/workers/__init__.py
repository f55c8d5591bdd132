"""What has no translation: functions that Python calls sample by sample.

- calls: gives a batch's images to the functions, here or in processes, and takes what they give.
- worker: the functions at work. processes: the processes, and what they are told.
- images, samples: what travels there and back. shared_memory: in which memory.
"""

"""install(): torch's DataLoader made ours where it is over images.

- install: changes the constructor of torch's class. loader: makes a loader ours while it is constructed.
- frameworks: what Accelerate and Ray Train would lose. report: what became of each loader.
"""

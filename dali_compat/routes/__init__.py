"""Chooses who loads a data set, and keeps what a loader has between epochs.

- choose: DALI, the resident route, or torch's own loader and why. Asked at every iter().
- dali: the DALI route's plans and pipelines. decoded_cache: the images of ``cache=``.
- resident: the arrays on the device.
- explain: the text of explain(); translate/chain has a plan's lines of it.
"""

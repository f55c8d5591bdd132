"""Plans of deferred images: images that share a pipeline, and their numbers."""

import numpy as np

from dali_compat.ops import kernels
from dali_compat.ops.draws import compute
from dali_compat.plan import Options
from dali_compat.tracing import color, convert, geometry  # noqa: F401 - they register operations
from dali_compat.tracing.operations import State, outcome_of
from dali_compat.tracing.plans import divided, merged, size_after, whole_plan

TOP = State("pil", "RGB", (3, 60, 70))


def done(*calls, state=TOP):
    """Return the steps of several operations, one after another."""
    steps = []
    for name, *args in calls:
        outcome = outcome_of(name, state, "v1", args, {})
        assert outcome is not None and outcome.steps is not None, name
        steps += outcome.steps
        state = outcome.state
    return steps


def ran(steps, image):
    """Return the image that a plan of these steps makes, by exact kernels."""
    head, of_head, tail = divided(steps)
    key, _ = merged([tail], [size_after(head, of_head, image.shape[-2:])])
    plan = whole_plan(head, key, None, None, Options(exact=True))
    steps = (*plan.dali, *plan.batch)
    numbers, made = of_head, image[None]
    for step in steps:
        sizes = np.array([made.shape[-2:]])
        (values,) = compute((step,), sizes, lambda stream, k: np.array([numbers])[:, :k], slice(None))
        made = kernels.run(step, made, values)
    return made[0]

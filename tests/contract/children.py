"""Run a function in a forked child."""

import multiprocessing


def call_in_child(function, seconds=60):
    """Return the result of ``function`` in a forked child, or its error."""

    def run(pipe):
        try:
            pipe.send(("result", function()))
        except Exception as error:
            pipe.send((type(error).__name__, str(error)))

    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=run, args=(there,), daemon=True)
    child.start()
    try:
        assert here.poll(seconds), "the child hangs"
        return here.recv()
    finally:
        child.kill()
        child.join()

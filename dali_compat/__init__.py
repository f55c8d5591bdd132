"""PyTorch's image loading, accelerated by NVIDIA DALI.

    from dali_compat import DataLoader, DALIImageFolder

Importing this package imports neither DALI nor torchvision. It sets the environment variable
CUDA_DEVICE_MAX_CONNECTIONS to 32, unless it is set or CUDA is initialized. With CUDA's default of 8 hardware
queues, DALI's streams would share a queue with the training stream and wait for its kernels. If DALI is not installed,
a warning on Linux names the extra to install.
"""

import os as _os
import sys as _sys
import typing as _typing

__version__ = "1.1.0"

if _typing.TYPE_CHECKING:
    from .archives.lmdb import DALILMDB as DALILMDB
    from .archives.recordio import DALIRecordIO as DALIRecordIO
    from .archives.tfrecord import DALITFRecord as DALITFRecord
    from .archives.webdataset import DALIWebDataset as DALIWebDataset
    from .data.arrays import DALIArrayDataset as DALIArrayDataset
    from .data.folder import DALIImageFolder as DALIImageFolder
    from .data.hugging_face import DALIHuggingFace as DALIHuggingFace
    from .data.image_table import DALIImageList as DALIImageList
    from .data.image_table import DALIImageTable as DALIImageTable
    from .epoch.history import merge_states as merge_states
    from .epoch.on_error import SampleError as SampleError
    from .epoch.stats import LoaderStats as LoaderStats
    from .errors import BadImageWarning as BadImageWarning
    from .errors import FallbackWarning as FallbackWarning
    from .errors import ImageReadError as ImageReadError
    from .loader import DataLoader as DataLoader
    from .patch import install as install
    from .patch import uninstall as uninstall
    from .routes.batched import batched as batched
    from .translate import on_batch as on_batch
    from .translate import register as register
    from .translate import views as views

    DALIDataLoader = DataLoader

_MODULES = {
    "loader": "DataLoader DALIDataLoader",
    "errors": "FallbackWarning ImageReadError BadImageWarning",
    "data.folder": "DALIImageFolder",
    "data.arrays": "DALIArrayDataset",
    "data.image_table": "DALIImageList DALIImageTable",
    "data.hugging_face": "DALIHuggingFace",
    "epoch.on_error": "SampleError",
    "epoch.stats": "LoaderStats",
    "archives.recordio": "DALIRecordIO",
    "archives.tfrecord": "DALITFRecord",
    "archives.lmdb": "DALILMDB",
    "archives.webdataset": "DALIWebDataset",
    "patch": "install uninstall",
    "epoch.history": "merge_states",
    "routes.batched": "batched",
    "translate": "on_batch register views",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}
# literal, for type checkers
__all__ = ["BadImageWarning", "DALIArrayDataset", "DALIDataLoader", "DALIHuggingFace", "DALIImageFolder"]
__all__ += ["DALILMDB", "DALIImageList", "DALIImageTable", "DALIRecordIO", "DALITFRecord", "DALIWebDataset"]
__all__ += ["DataLoader", "FallbackWarning", "ImageReadError", "LoaderStats", "SampleError", "batched", "install"]
__all__ += ["merge_states", "on_batch", "register", "uninstall", "views"]


def _give_cuda_queues() -> None:
    torch = _sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        _os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def _name_the_extra_that_is_missing() -> None:
    """On Linux, warn if DALI is not installed. Child processes do not repeat the warning."""
    from importlib.util import find_spec

    nvidia = find_spec("nvidia")  # not find_spec("nvidia.dali"), which imports the parent package
    places = (nvidia and nvidia.submodule_search_locations) or ()
    if _sys.platform != "linux" or any(_os.path.isdir(_os.path.join(place, "dali")) for place in places):
        return
    from multiprocessing import parent_process
    from warnings import warn

    from .errors import FallbackWarning
    from .runtime.installation import dali_problem

    if parent_process() is None and (problem := dali_problem()):
        warn(f"dali_compat: {problem}", FallbackWarning, stacklevel=3)


_give_cuda_queues()
_name_the_extra_that_is_missing()


if not _typing.TYPE_CHECKING:  # type checkers report any name that is not listed above

    def __getattr__(name: str) -> _typing.Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f".{_HOME[name]}", __name__), "DataLoader" if name == "DALIDataLoader" else name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]

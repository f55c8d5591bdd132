"""TIFF files, written tag by tag because Pillow writes few of the kinds that it reads."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import numpy as np

_SHORT, _LONG = 3, 4
WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER, OFFSETS, ORIENTATION = 256, 257, 258, 259, 262, 266, 273, 274
SAMPLES, ROWS, COUNTS, PLANAR, PREDICTOR, COLOR_MAP, TILE_WIDTH, TILE_HEIGHT = 277, 278, 279, 284, 317, 320, 322, 323
TILE_OFFSETS, TILE_COUNTS, EXTRA_SAMPLES, SAMPLE_FORMAT = 324, 325, 338, 339


def tiff(
    strips: list[bytes], tags: dict[int, list[int]], order: str = "<", next_page: int = 0, tiles: bool = False
) -> bytes:
    """Return a TIFF with one page. ``tags`` maps numbers to values; offsets and counts of the strips or tiles are
    added."""
    data, starts = b"", []
    for strip in strips:
        starts.append(8 + len(data))
        data += strip + b"\0" * (len(strip) % 2)
    tags = {
        **tags,
        TILE_OFFSETS if tiles else OFFSETS: starts,
        TILE_COUNTS if tiles else COUNTS: [len(s) for s in strips],
    }
    entries, more, start = b"", b"", 8 + len(data)
    after = start + 2 + 12 * len(tags) + 4
    for tag, values in sorted(tags.items()):
        kind = _LONG if tag in (OFFSETS, COUNTS, TILE_OFFSETS, TILE_COUNTS) else _SHORT
        packed = struct.pack(f"{order}{len(values)}{'I' if kind == _LONG else 'H'}", *values)
        entries += struct.pack(f"{order}HHI", tag, kind, len(values))
        if len(packed) > 4:
            entries += struct.pack(f"{order}I", after + len(more))
            more += packed
        else:
            entries += packed.ljust(4, b"\0")
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, start)
    return head + data + struct.pack(f"{order}H", len(tags)) + entries + struct.pack(f"{order}I", next_page) + more


def of_samples(samples: np.ndarray, order: str = "<", rows: int = 1000, next_page: int = 0, **tags: int) -> bytes:
    """Return a TIFF of ``samples`` (H, W, C) of any type, in strips of ``rows``. ``tags`` are named as in this
    module."""
    height, width, channels = samples.shape
    samples = samples.astype(samples.dtype.newbyteorder(order))
    fields = {
        WIDTH: [width], HEIGHT: [height], BITS: [8 * samples.itemsize] * channels, COMPRESSION: [1],
        PHOTOMETRIC: [2 if channels >= 3 else 1], SAMPLES: [channels], ROWS: [min(rows, height)],
    }  # fmt: skip
    fields.update({globals()[name]: [value] if isinstance(value, int) else value for name, value in tags.items()})
    planes = [samples[..., c] for c in range(channels)] if tags.get("PLANAR") == 2 else [samples]
    strips = [plane[y : y + rows].tobytes() for plane in planes for y in range(0, height, rows)]
    return tiff(strips, fields, order, next_page)


def _tiled(samples: np.ndarray, side: int = 16) -> bytes:
    height, width, channels = samples.shape
    padded = np.pad(samples, ((0, -height % side), (0, -width % side), (0, 0)))
    tiles = [
        padded[y : y + side, x : x + side].tobytes() for y in range(0, height, side) for x in range(0, width, side)
    ]
    fields = {WIDTH: [width], HEIGHT: [height], BITS: [8] * channels, COMPRESSION: [1], TILE_WIDTH: [side],
              PHOTOMETRIC: [2 if channels == 3 else 1], SAMPLES: [channels], TILE_HEIGHT: [side]}  # fmt: skip
    return tiff(tiles, fields, tiles=True)


def _differences(samples: np.ndarray) -> np.ndarray:
    return np.diff(samples, axis=1, prepend=samples.dtype.type(0))


def written(picture: Callable) -> dict[str, bytes]:
    rgb = np.asarray(picture())
    gray = np.asarray(picture("L"))[..., None]
    more = np.concatenate([gray, gray[::-1]], 2)
    alpha = np.concatenate([rgb, gray[::-1]], 2)
    made = {}
    for order, name in (("<", "II"), (">", "MM")):
        made[f"RGB {name}.tif"] = of_samples(rgb, order)
        made[f"gray {name}.tif"] = of_samples(gray, order, rows=16)
        made[f"gray 16 {name}.tif"] = of_samples(gray.astype(np.uint16) * 250, order)
        made[f"RGB 16 {name}.tif"] = of_samples(rgb.astype(np.uint16) * 250, order)
        made[f"float {name}.tif"] = of_samples(gray.astype(np.float32), order, SAMPLE_FORMAT=3)
    return {
        **made,
        "RGB strips.tif": of_samples(rgb, rows=7),
        "RGB planar.tif": of_samples(rgb, PLANAR=2),
        "RGB planar strips.tif": of_samples(rgb, rows=7, PLANAR=2),
        "RGB tiles.tif": _tiled(rgb),
        "gray tiles.tif": _tiled(gray),
        "white is zero.tif": of_samples(gray, PHOTOMETRIC=0),
        "gray extra.tif": of_samples(more, EXTRA_SAMPLES=0),
        "gray alpha.tif": of_samples(more, EXTRA_SAMPLES=2),
        "RGB extra.tif": of_samples(alpha, EXTRA_SAMPLES=0),
        "RGB premultiplied.tif": of_samples(alpha, EXTRA_SAMPLES=1),
        "RGB alpha.tif": of_samples(alpha, EXTRA_SAMPLES=2),
        "CMYK.tif": of_samples(alpha, PHOTOMETRIC=5),
        "YCbCr.tif": of_samples(rgb, PHOTOMETRIC=6),
        "Lab.tif": of_samples(rgb, PHOTOMETRIC=8),
        "fill order.tif": of_samples(gray, FILL_ORDER=2),
        "RGB fill order.tif": of_samples(rgb, FILL_ORDER=2),
        "predictor.tif": of_samples(_differences(gray), PREDICTOR=2),
        "RGB predictor.tif": of_samples(_differences(rgb), PREDICTOR=2),
        "signed.tif": of_samples(gray, SAMPLE_FORMAT=2),
        "orientation 3.tif": of_samples(rgb, ORIENTATION=3),
        "junk next page.tif": of_samples(rgb, next_page=0x12345678),
        "next page in the data.tif": of_samples(rgb, next_page=20),
        "palette.tif": of_samples(gray, PHOTOMETRIC=3, COLOR_MAP=[(i * 257 * 7) % 65536 for i in range(768)]),
        "bilevel.tif": _bilevel(gray[..., 0]),
    }


def _bilevel(gray: np.ndarray) -> bytes:
    fields = {WIDTH: [gray.shape[1]], HEIGHT: [gray.shape[0]], BITS: [1], COMPRESSION: [1], PHOTOMETRIC: [1],
              SAMPLES: [1], ROWS: [gray.shape[0]]}  # fmt: skip
    return tiff([np.packbits(gray > 99, axis=1).tobytes()], fields)


def files(picture: Callable) -> dict[str, bytes]:
    made = written(picture)
    for compression in (None, "tiff_lzw", "tiff_deflate", "packbits", "jpeg"):
        file = io.BytesIO()
        picture().save(file, "TIFF", compression=compression)
        made[f"saved {compression}.tif"] = file.getvalue()
    file = io.BytesIO()
    picture().save(file, "TIFF", save_all=True, append_images=[picture(number=4)])
    made["pages.tif"] = file.getvalue()
    return made

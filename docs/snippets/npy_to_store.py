"""Turn one large .npy file into a store: python npy_to_store.py x.npy lengths.npy out.zarr."""

import sys

import numpy as np

import chunkstore


def main(values_file: str, lengths_file: str, out: str) -> None:
    values = np.load(values_file, mmap_mode="r")  # [obs, channel], never in memory as a whole
    ends = np.load(lengths_file).cumsum()  # obs of each sequence
    field = chunkstore.FieldSpec("x", values.dtype.name, items=values.shape[1])
    with chunkstore.StoreWriter(out, [field]) as writer:
        for i, (start, stop) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            writer.write(f"sequence-{i}", {"x": values[start:stop]})


if __name__ == "__main__":
    main(*sys.argv[1:])

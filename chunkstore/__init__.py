"""chunkstore: a storage layer and training reader for time series and audio."""

__version__ = "0.1.0"

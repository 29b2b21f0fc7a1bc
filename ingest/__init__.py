"""ingest: fills chunkstore stores from Avro, audio and other files, on one machine or a dask cluster."""

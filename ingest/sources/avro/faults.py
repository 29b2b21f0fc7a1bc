"""The stable fault codes of Avro inputs, and what each of them says."""

from __future__ import annotations

__all__ = ["CODES", "STATUS_CODES"]

#: fault code -> what it says; ``ingest.faults`` joins the codes of all sources
CODES: dict[str, str] = {
    "avro-empty": "the file holds no byte; it counts as 0 rows",
    "avro-not-container": "the file does not begin with the magic bytes of an Avro container",
    "avro-header": "the container's header is cut off or is not a map of metadata and a sync marker",
    "avro-schema": "the header's schema is not a valid Avro schema",
    "avro-codec-unknown": "the header names a compression codec that the specification does not have",
    "avro-unreadable": "the input could not be opened or read",
    "avro-block-header": "a block's row count or size is not a valid number",
    "avro-block-claim": "a block claims more rows or bytes than it can hold, or than the limits allow",
    "avro-truncated": "the file ends inside a block",
    "avro-sync-mismatch": "a block does not end with the file's sync marker",
    "avro-concatenated": "a second container begins inside the file; what follows is not read",
    "avro-decompress": "a block's bytes do not decompress",
    "avro-bomb": "a block decompresses to more than the size or ratio limit allows",
    "avro-crc": "a snappy block's checksum does not fit its bytes",
    "avro-overrun": "a record reads beyond the end of its block",
    "avro-trailing": "bytes are left in the block after its last record",
    "avro-varint": "a number is longer than ten bytes or does not fit its type",
    "avro-union": "a union's branch number is not one of the schema's",
    "avro-enum": "an enum's number is not one of the schema's, or the reader does not know the symbol",
    "avro-boolean": "a boolean is neither 0 nor 1",
    "avro-length": "a string, array or map claims a length that the block cannot hold",
    "avro-array-size": "an array's byte size does not fit its items",
    "avro-vector-length": "an array that is stored as a vector has another length than its field",
    "avro-array-lengths": "the arrays of one record, which are obs side by side, differ in length",
    "avro-utf8": "a key or label is not valid UTF-8",
    "avro-decimal": "a decimal does not fit 64 bits",
    "avro-depth": "values nest deeper than the limit",
    "avro-resolution": "a value cannot be read as the reader's schema wants it",
    "avro-null-vector": "a null stands where a whole vector or an item of an integer vector is needed",
    "avro-null-key": "rows whose key is null; they are stored under the id 'null'",
    "avro-label-varies": "a label changes inside a sequence; its first value is kept",
    "avro-default": "a default of the reader's schema does not fit its type; it is not used",
}

#: status of a block in the decoders, a small integer -> fault code; 0 is a good block
STATUS_CODES: tuple[str, ...] = (
    "",
    "avro-overrun",
    "avro-trailing",
    "avro-varint",
    "avro-union",
    "avro-enum",
    "avro-boolean",
    "avro-length",
    "avro-array-size",
    "avro-vector-length",
    "avro-array-lengths",
    "avro-utf8",
    "avro-decimal",
    "avro-depth",
    "avro-resolution",
    "avro-null-vector",
    "avro-decompress",
    "avro-bomb",
    "avro-crc",
    "avro-block-claim",
)

"""Instructions of the decoding program, shared by its compiler and its interpreter.

An instruction is a row of eight integers: the operation and its operands ``a`` to ``g``. Operands of
the store instructions: ``a`` base of the column in units of its own dtype, ``b`` items of a row, ``c`` cursor
(0: the record's number; else an array whose items are obs).
"""

from __future__ import annotations

__all__ = ["WIDTH"]

WIDTH = 8

# fmt: off
# -- control
END = 0          # the record is complete
JUMP = 1         # a: target
UNION = 2        # a: first of b targets in aux
NULLABLE = 3     # a: number of the null branch (of two), b: target for null
ARRAY = 4        # a: its NEXT, b: 0 skip, 1 vector of c items (d: 1 may be empty), 2 obs of cursor d, 3 the
#                  same inside a vector
NEXT = 5         # a: first of the body, b, c, d as ARRAY, e: fewest bytes of an item, f: operation of a
#                  body of one instruction, or -1
CALL = 6         # a: target
RETURN = 7
FAIL = 8         # a: status
MARK = 9         # number: remember the place ...
BACK = 10        # number: ... and return to it, to read the same value again
# -- skip
SKIP = 11        # a: bytes
SKIP_VARINT = 12 # a: how many
SKIP_BYTES = 13  # a string (a: 1 where UTF-8 is required) or bytes
SKIP_BOOL = 14
SKIP_ENUM = 15   # a: symbols
# -- store
BOOL = 20
INT = 21         # to int32
LONG = 22        # to int64; d: 1 where the writer's type is int
INT_F32 = 23
INT_F64 = 24
COPY32 = 25      # f: how many further copies follow, of scalars with the same cursor
COPY64 = 26
F32_F64 = 27
BYTES = 28       # d: bytes to copy; base and items count bytes
ENUM8 = 29       # d: first of e codes in aux
ENUM16 = 30
ENUM32 = 31
DECIMAL = 32     # length before it
DECIMAL_FIXED = 33  # d: bytes
NULL_COPY32 = 34 # d: number of the null branch, e: bits for null
NULL_COPY64 = 35
# -- null and constants: d: bits, e: how many items
FILL8 = 40
FILL16 = 41
FILL32 = 42
FILL64 = 43
# -- keys and labels: a: table
KEY_BYTES = 50   # b: 1 where UTF-8 is required
KEY_LONG = 51
KEY_FIXED = 52   # b: bytes
KEY_ENUM = 53    # b: first of c codes in aux
KEY_BOOL = 54
KEY_F32 = 55
KEY_F64 = 56
KEY_CONST = 57   # b: value, c: kind (-1 number, -2 null, -3 constant of the program)
# fmt: on

# -- what a block may be found to be; the order is that of faults.STATUS_CODES
(
    OK,
    OVERRUN,
    TRAILING,
    BAD_VARINT,
    BAD_UNION,
    BAD_ENUM,
    BAD_BOOL,
    BAD_LENGTH,
    BAD_ARRAY_SIZE,
    BAD_VECTOR,
    BAD_ARRAYS,
    BAD_UTF8,
    BAD_DECIMAL,
    TOO_DEEP,
    UNRESOLVED,
    NULL_VECTOR,
) = range(16)
#: not a status of a block: a dictionary is full
GROW = 99
#: the same: there is no room for more obs of records
GROW_ROWS = 98

#: values inside each other that are read more than once
MAX_MARKS = 16
#: items without bytes that the arrays of one block may claim, where they are counted
MAX_EMPTY_ITEMS = 1 << 20

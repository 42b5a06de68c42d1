"""The operations' codes on the wire (csrc/base/call.h)."""

BARRIER, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST = range(5)
REDUCE, GATHER, SCATTER, ALL_TO_ALL = range(5, 9)

"""Ids of strings: user names, URLs, feature values. A published hash, the same everywhere.

Pure: called by whoever pulls and pushes, on any thread.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring.errors import InvalidArgument
from gradring.ps.arguments.checks import whole

Ids = npt.NDArray[np.uint64]


def ids_of(
    strings: Any, *, salt: str | bytes = b"", slot: int | None = None, shift: int = 48
) -> Ids:
    """Return an id for each string: the same in every process, on every machine, in every version.

    It is the BLAKE2b of 8 bytes (RFC 7693) of the string in UTF-8, read as a little-endian
    number. So a str and its bytes have one id, and other programs can make the same ones. 0 is no
    string's id, which leaves it to ``padding_idx``; a hash of 0 becomes 1. Nothing is remembered,
    and an id does not lead back to its string: keep those that you will want to read again.

    Two of n strings have one id, and so share a row, with a chance of about ``n * n / 2**65``:
    10 million strings 3 in a million, a thousand million 3 %. With a slot ``2**(shift + 1)`` takes
    the place of ``2**65``: with the usual 48 bits a million strings of one slot have such a pair
    with a chance of 0.2 %, and 10 million with one of 16 %.

    Args:
        strings: A str or bytes, a list of them or an array of any shape: NumPy's of str, bytes or
            objects, or what `numpy.asarray` makes one of. Arrays of a fixed width (``<U5``,
            ``S5``) have lost NULs at the end of a string before they come here.
        salt: The hash's key, of up to 64 bytes. Another salt gives other ids, so that the
            strings of two features in one table do not share rows; who takes strings from
            strangers gives a secret one, so that nobody can choose strings that meet in one place.
        slot: What ``id >> shift`` is to be, for the settings of `gradring.ps.Slots`; the lower
            ``shift`` bits are the hash's.
        shift: That of `gradring.ps.Slots`, from 1 to 63; without ``slot`` it does not count.

    Returns:
        uint64, of the shape of ``strings``; ``ids.view(numpy.int64)`` for PyTorch.

    Raises:
        InvalidArgument: Something is no string, such as None: names its place in the flat array. Or
            a string is no UTF-8 text, the salt too long, or slot or shift out of range.
    """
    key = _encoded(salt, "salt")
    if len(key) > hashlib.blake2b.MAX_KEY_SIZE:
        raise InvalidArgument(
            f"ids_of: salt has {len(key)} bytes; at most {hashlib.blake2b.MAX_KEY_SIZE}"
        )
    shift = whole("ids_of: shift", shift, 1, 63)
    if slot is not None:
        slot = whole("ids_of: slot", slot, 0, (1 << (64 - shift)) - 1)
    texts = _as_objects(strings)
    ids = _hashes(texts.ravel().tolist(), key).reshape(texts.shape)
    if slot is not None:
        ids = ids & np.uint64((1 << shift) - 1) | np.uint64(slot << shift)
    return np.asarray(np.maximum(ids, np.uint64(1)))


def _as_objects(strings: Any) -> npt.NDArray[np.object_]:
    if isinstance(strings, np.ma.MaskedArray):
        raise InvalidArgument("ids_of: strings is a masked array; give a string in place of gaps")
    try:
        # Not of a list as it is: NumPy would drop NULs at the end of its strings.
        return np.asarray(strings, None if hasattr(strings, "dtype") else object).astype(object)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"ids_of: strings is a {type(strings).__name__} that makes no array: {error}"
        ) from error


def _hashes(texts: list[Any], key: bytes) -> Ids:
    begun = hashlib.blake2b(digest_size=8, key=key)
    digests = []
    for place, text in enumerate(texts):
        hashed = begun.copy()  # Takes half the time of a new one.
        hashed.update(_encoded(text, "strings", place))
        digests.append(hashed.digest())
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def _encoded(text: Any, name: str, place: int | None = None) -> bytes:
    if type(text) is str and text.isascii():
        return text.encode()
    if isinstance(text, bytes):
        return text
    what = "ids_of: " + name if place is None else f"ids_of: {name}[{place}]"
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} is {_shown(text)}; give a str or bytes{_instead(text)}")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{what} is {text!r}, which has half a character (a lone surrogate) and so is no UTF-8 "
            "text; give its bytes"
        ) from None


def _shown(text: Any) -> str:
    return "None" if text is None else f"of {type(text).__name__}"


def _instead(text: Any) -> str:
    if text is None or isinstance(text, float):
        return ", '' for example where there is none"
    if isinstance(text, int):
        return "; whole numbers are ids as they are"
    return ""

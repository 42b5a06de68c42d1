"""What the compiled core is given, checked first: it refuses a wrong argument by printing them all.

So the secret travels as `Hidden`, paths as the bytes that the system knows them by, and text and
numbers are refused here, by name, before the core sees them.
"""

from __future__ import annotations

import os

from gradring.errors import InvalidArgument

# The core's own limits.
MOST_RANKS = 1 << 14
MOST_SHARDS = 1 << 10


class Hidden(bytes):
    """Bytes that no message, traceback or record shows."""

    def __repr__(self) -> str:
        """Say that there is a secret, and no more."""
        return "<secret>"

    __str__ = __repr__


class OwnName(str):
    """The name of a table of the library's own, which no user can take."""

    PREFIX = "gradring/"  # Servers go by it too: such tables keep their rows in tick and shrink.

    __slots__ = ()


def secret_bytes(secret: str | bytes) -> Hidden:
    """Return a secret as the core takes it.

    Raises:
        InvalidArgument: It is neither text nor bytes, or holds half a character.
    """
    if isinstance(secret, bytes):
        return Hidden(secret)
    if not isinstance(secret, str):
        raise InvalidArgument(f"a secret is text or bytes, not {type(secret).__name__}")
    try:
        # A variable may hold any bytes; those that are no UTF-8 come here escaped.
        return Hidden(secret.encode(errors="surrogateescape"))
    except UnicodeEncodeError:
        # Its own message would show the text.
        raise InvalidArgument("the secret holds half a character (a lone surrogate)") from None


def require_secret(secret: str | bytes, source: str) -> None:
    """Refuse a secret that everybody knows: one of nothing, or of white space alone.

    Args:
        secret: The secret.
        source: The argument or variable it came from, for the message.

    Raises:
        InvalidArgument: It is empty or blank, or no secret at all.
    """
    known = secret_bytes(secret)
    if not (known if isinstance(secret, bytes) else secret).strip():
        raise InvalidArgument(f"{source}: the secret is empty or blank, which keeps nobody out")


def path_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return a path as the system knows it, whatever its encoding."""
    return os.fsencode(path)


def plain_text(text: str, source: str) -> str:
    """Return a name of a host, an interface and so on.

    Args:
        text: The name.
        source: The variable or option it came from, for the message.

    Raises:
        InvalidArgument: Its bytes are not UTF-8.
    """
    if not is_plain_text(text):
        raise InvalidArgument(f"{source}={text!r} is not UTF-8 text")
    return text


def is_plain_text(text: str) -> bool:
    """Tell whether it is UTF-8; what comes from the environment may be any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def whole_number(number: object, source: str, least: int, most: int) -> int:
    """Return a number that fits.

    Args:
        number: The number.
        source: The argument or option it came from, for the message.
        least: The smallest one that makes sense.
        most: The largest one.

    Raises:
        InvalidArgument: It does not fit, or is no whole number.
    """
    if not isinstance(number, int) or not least <= number <= most:
        raise InvalidArgument(f"{source} {number!r}: not a whole number from {least} to {most}")
    return number

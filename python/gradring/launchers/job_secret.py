"""The job's secret where no launcher of ours hands one out.

Asked once for each job that is joined. One that another launcher started on one host uses a secret
that only this user can read, made on first use and kept in the user's state directory; mixed with
the job's name, it lets a second job of the same user not mistake itself for the first. Everything
else has to say GRADRING_SECRET.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from gradring.errors import InvalidArgument
from gradring.launchers import known
from gradring.launchers.roles import Role
from gradring.settings.address import is_loopback

HOW_TO_MAKE_ONE = (
    'export GRADRING_SECRET=$(python3 -c "import secrets; print(secrets.token_hex(32))")'
)

# By hand nothing tells one job from the next, so only launchers that start all ranks themselves
# are trusted here.
_LAUNCHERS = tuple(
    launcher.source
    for launcher in (
        known.TORCHRUN,
        known.OPEN_MPI,
        known.PMI,
        known.SLURM,
    )
)


def secret_for(role: Role | None, environ: Mapping[str, str]) -> str:
    """Return the secret that every rank of this job knows.

    Args:
        role: From `gradring.launchers.roles.discover`.
        environ: Where XDG_STATE_HOME and HOME are looked up.

    Raises:
        InvalidArgument: The job needs GRADRING_SECRET and has none; the message shows how to make
            one. Or the kept secret cannot be made, or others could read it.
    """
    if role is None or role.world_size == 1:
        return secrets.token_hex(32)
    if role.secret is not None:
        return role.secret
    if not needs_secret(role):
        text = f"{role.source} {role.job} {role.world_size} {role.rendezvous}"
        kept = user_secret(state_directory(environ))
        return hmac.new(kept.encode(), text.encode(), hashlib.sha256).hexdigest()
    raise InvalidArgument(
        f"rank {role.rank} of {role.world_size} ({role.source}, rendezvous {role.rendezvous}): "
        "GRADRING_SECRET is not set, and this job was started neither by `gradring run` nor on one "
        f"host by a launcher we know; give every rank the same one:\n  {HOW_TO_MAKE_ONE}"
    )


def needs_secret(role: Role) -> bool:
    """Tell whether this job cannot start without GRADRING_SECRET."""
    is_local = role.is_single_host and is_loopback(role.rendezvous_host)
    return role.world_size > 1 and not (is_local and role.source in _LAUNCHERS)


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return where this user's secret is kept.

    Raises:
        InvalidArgument: Neither XDG_STATE_HOME nor HOME is set.
    """
    state = environ.get("XDG_STATE_HOME")
    if state:
        return Path(state) / "gradring"
    home = environ.get("HOME")
    if not home:
        raise InvalidArgument(
            "neither HOME nor XDG_STATE_HOME is set, so a secret has no place; set one: "
            + HOW_TO_MAKE_ONE
        )
    return Path(home) / ".local" / "state" / "gradring"


def user_secret(directory: Path) -> str:
    """Return this user's secret, made on first use; ranks that start together all get the same one.

    Raises:
        InvalidArgument: The file cannot be made or read, is not ours, or others may read it.
    """
    path = directory / "secret"
    try:
        if not path.exists():
            _make(path)
        found = path.lstat()
        text = path.read_text().strip()
    except OSError as error:
        raise InvalidArgument(
            f"cannot keep a secret in {path}: {error}; set one instead: {HOW_TO_MAKE_ONE}"
        ) from error
    is_private = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077
    if found.st_uid != os.geteuid() or not is_private or len(text) < 64:
        raise InvalidArgument(
            f"{path} is not a private file of this user with a secret in it; remove it, "
            "and it is made anew"
        )
    return text


def _make(path: Path) -> None:
    # The whole file appears at once, and the first one stays: link() does not replace.
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"secret.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()

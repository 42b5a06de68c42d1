"""Two hosts joined by a cable: which of their addresses ranks tell one another, and who hears it.

A link-local address, the only one that hosts have without a router, means something on one link
only, and each host has its own name for that link.
"""

from __future__ import annotations

from typing import Any

import pytest

import cabled_hosts

pytestmark = [pytest.mark.timeout(60)]

# Ranks 0 and 2 are on the near host, rank 1 is on the far one. Arguments: where ranks meet, with
# {link} for the name of the link; and the interfaces that ranks are told to use.
ON_NEAR = """
import socket, threading
RANK = '''
import json, gradring as gr, numpy as np
try:
    with gr.init(timeout=3) as comm:
        x = np.full(100_000, comm.rank + 1.0)
        comm.all_reduce(x, algorithm="direct")
        assert (x == 6).all()
        comm.barrier()
        print(json.dumps([comm.describe(rank) for rank in range(3)]))
except gr.Error as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
'''
heard = bytearray()
ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # All of the cable.
ear.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE: nothing is lost.
ear.bind(("near", 0))
ear.settimeout(0.1)
is_over = threading.Event()

def listen():
    while not is_over.is_set():
        try:
            heard.extend(ear.recv(1 << 17))
        except TimeoutError:
            pass

listener = threading.Thread(target=listen)
listener.start()
meeting, *interfaces = sys.argv[1:]
ranks = []
for rank, inside, link in ((0, [], "near"), (1, far, "far"), (2, [], "near")):
    said = {
        "RANK": str(rank), "WORLD_SIZE": "3", "RENDEZVOUS": meeting.format(link=link),
        "SECRET": "s" * 32, "INTERFACE": interfaces[rank],
    }
    environ = {**os.environ, **{f"GRADRING_{name}": value for name, value in said.items()}}
    if inside and "OF_FAR_HOST" in environ:
        environ["GRADRING_TLS"] = environ["OF_FAR_HOST"]
    argv = [*inside, sys.executable, "-c", RANK]
    ranks.append(subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE))
said = [json.loads(rank.communicate(timeout=40)[0]) for rank in ranks]
is_over.set()
listener.join()
rank_1s = bytes.fromhex("0000000000000040") * 50  # What rank 1 adds, 2.0 again and again.
print(json.dumps([*said, {"bytes": len(heard), "reads": rank_1s in heard}]))
"""


def on_cabled_hosts(meeting: str, *interfaces: str, **environ: str) -> list[Any]:
    """Return what each rank calls the others, or the text of its error; and who listens in."""
    said: list[Any] = cabled_hosts.on_cabled_hosts(ON_NEAR, meeting, *interfaces, **environ)
    return said


@pytest.mark.parametrize("interfaces", [("fe80::/10",) * 3, ("", "", "")])
def test_hosts_meet_by_link_local_addresses(interfaces: tuple[str, ...]) -> None:
    near, far, beside, _ = on_cabled_hosts("[fe80::1%{link}]:4000", *interfaces)
    assert near[1].startswith("rank 1 ([fe80::2%")
    assert far[2].startswith("rank 2 ([fe80::1%")
    # Everybody names the link as it is called on that rank's own host.
    assert all("%near]:" in name for name in near + beside)
    assert all("%far]:" in name for name in far)


def test_an_interface_with_several_kinds_of_addresses_is_known_by_the_one_that_leads_furthest() -> (
    None
):
    near, far, *_ = on_cabled_hosts("10.8.8.1:4000", "near", "far", "near")
    assert near[1].startswith("rank 1 (10.8.8.2:")
    assert far[2].startswith("rank 2 (10.8.8.1:")


def test_without_the_link_s_name_a_link_local_address_is_refused_and_one_asked_for() -> None:
    near, far, *_ = on_cabled_hosts("[fe80::1]:4000", "", "", "")
    assert near.startswith("InvalidArgument: cannot listen on [fe80::1]:4000: a link-local address")
    assert "needs the name of its interface behind it, as %eth0" in far


def test_a_rank_that_other_hosts_cannot_reach_is_told_so_when_it_joins() -> None:
    near, far, *_ = on_cabled_hosts("10.8.8.1:4000", "", "lo", "")
    assert far.startswith("InvalidArgument: rank 1 listens at 127.0.0.1:")
    assert "which no other host reaches" in far
    assert "GRADRING_INTERFACE there is to name an interface" in far
    assert near.startswith("TimedOut: ")
    assert "rank 1 of a world of 3 had not joined" in near


@pytest.mark.parametrize("tls", ["auto", "off"])
def test_between_hosts_nobody_reads_what_ranks_say_unless_that_is_switched_off(tls: str) -> None:
    near, _, _, cable = on_cabled_hosts("10.8.8.1:4000", "", "", "", GRADRING_TLS=tls)
    assert near[1].startswith("rank 1 (")
    assert cable["bytes"] > 800_000
    assert cable["reads"] == (tls == "off")


def test_a_host_that_does_not_encrypt_is_refused_by_one_that_does() -> None:
    near, far, *_ = on_cabled_hosts("10.8.8.1:4000", "", "", "", OF_FAR_HOST="off")
    assert "GRADRING_TLS is off here" in far
    assert near.startswith("TimedOut")

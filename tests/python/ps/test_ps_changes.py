"""What others have changed comes into memory that the caller keeps."""

from __future__ import annotations

import numpy as np
import pytest

from bare_servers import connect, pull, push, service, spec
from gradring.errors import InvalidArgument


def test_changes_of_others_are_found() -> None:
    with service(2) as servers:
        mine, other = connect(*servers, client=0), connect(*servers, client=1)
        tables = [client.make_table(spec()) for client in (mine, other)]
        push(mine, tables[0], [1, 2])
        push(other, tables[1], [2, 3, 4])
        room = np.empty(2 * 2400, np.uint8)  # 100 rows of 8 + 4 * 4 bytes for each server.
        counts, since, *more = mine.pull_changed(tables[0], [0, 0], room)
        assert (sum(counts), more) == (3, [False, 0])
        ids = [
            room[2400 * server :][: 8 * count].view(np.uint64)
            for server, count in enumerate(counts)
        ]
        assert sorted(np.concatenate(ids).tolist()) == [2, 3, 4]
        for server, (count, its) in enumerate(zip(counts, ids, strict=True)):
            rows = room[2400 * server + 8 * count :][: 16 * count].view(np.float32)
            np.testing.assert_array_equal(rows.reshape(count, 4), pull(mine, tables[0], its))
        assert mine.pull_changed(tables[0], since, room)[0] == [0, 0]


def test_changes_come_page_by_page_into_the_room_there_is() -> None:
    with service() as servers:
        mine, other = connect(*servers, client=0), connect(*servers, client=1)
        tables = [client.make_table(spec()) for client in (mine, other)]
        for first in (0, 2, 4):
            push(other, tables[1], [first, first + 1])
        room, found, since, more = np.empty(4 * 24 + 7, np.uint8), [], [0], True
        while more:
            (count,), since, more, share = mine.pull_changed(tables[0], since, room)
            assert (count, share) == (2, 0)
            found += room[: 8 * count].view(np.uint64).tolist()
        assert sorted(found) == list(range(6))
        # All rows of a change come together; without room for them nothing is written.
        push(other, tables[1], range(10))
        room[:] = 7
        *_, share = mine.pull_changed(tables[0], since, room)
        assert share >= 240
        assert (room == 7).all()
        room = np.empty(share, np.uint8)
        assert mine.pull_changed(tables[0], since, room)[0] == [10]
        for few in (0, 23):
            with pytest.raises(InvalidArgument, match=f"{few} bytes of room .* rows of 24 bytes"):
                mine.pull_changed(tables[0], since, np.empty(few, np.uint8))
        with pytest.raises(InvalidArgument, match="2 stamps for 1 shards"):
            mine.pull_changed(tables[0], [0, 0], room)

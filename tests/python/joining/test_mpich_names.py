"""What ranks of MPICH take for their job's name: the proxy that all of a host descend from."""

from __future__ import annotations

from pathlib import Path

from gradring.launchers.mpich import launcher_identity


def test_mpich_ranks_of_one_mpiexec_find_the_same_name_and_others_another(tmp_path: Path) -> None:
    def process(pid: int, name: str, parent: int, started: int) -> None:
        (tmp_path / str(pid)).mkdir()
        rest = " ".join(["0"] * 17)
        # Of a name the kernel keeps 15 bytes, wherever in a letter that is.
        line = (
            f"{pid} (".encode() + name.encode()[:15] + f") S {parent} {rest} {started} 0".encode()
        )
        (tmp_path / str(pid) / "stat").write_bytes(line)

    process(10, "hydra_pmi_proxy", 1, 777)
    process(11, "sh) weird (", 10, 778)
    process(12, "python3", 11, 779)
    process(13, "python3", 10, 780)
    process(14, "обучение.sh", 10, 782)
    process(15, "python3", 14, 783)
    process(20, "python3", 1, 781)
    process(1, "init", 0, 0)

    def identity_of(pid: int) -> str | None:
        (tmp_path / "self").unlink(missing_ok=True)
        (tmp_path / "self").symlink_to(str(pid))
        return launcher_identity(tmp_path)

    assert identity_of(12) == identity_of(13) == identity_of(15) == "hydra 10 777"
    assert identity_of(20) is None

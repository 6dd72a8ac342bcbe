"""Nobody else on the machine can reach, read or steer a run."""

from __future__ import annotations

import re
from pathlib import Path

import nbstate


def test_only_loopback_listens_while_ranks_run(notebook):
    cell = notebook.run("""
        import psutil
        def train():
            PartialState().wait_for_everyone()
            print("up")
            while not os.path.exists("looked"):
                time.sleep(0.01)
        def listeners():
            found = set()
            for name in ("tcp", "tcp6", "udp", "udp6"):
                for line in open(f"/proc/net/{name}").read().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A" or name.startswith("udp"):
                        found.add((name, fields[1], fields[9]))
            return found
        def links(pid):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                try:
                    yield os.readlink(f"/proc/{pid}/fd/{fd}")
                except FileNotFoundError:       # closed meanwhile
                    pass
        job = launch(train, num_processes=2, view="silent")
        while any(rank.stdout != "up\\n" for rank in job.ranks):
            time.sleep(0.01)
        family = os.getpid(), *(rank.pid for rank in job.ranks)
        ours = set.union(*(set(links(pid)) for pid in family))
        far = [entry for entry in listeners() if f"socket:[{entry[2]}]" in ours
               and not entry[1].startswith(("0100007F:", "00000000000000000000000001000000:"))]
        open("looked", "w").close()
        job.wait()
        far
    """)
    assert cell.error is None
    assert cell.result == "[]"


def test_files_are_the_users_own(notebook):
    cell = notebook.run("""
        import stat
        os.umask(0o000)
        job = launch(lambda: print("secret"), num_processes=2, view="silent")
        job.wait()
        own = launch(lambda: print("secret"), num_processes=2, view="silent", log_dir="logs/deep")
        own.wait()
        os.umask(0o022)
        mode = lambda path: oct(stat.S_IMODE(os.stat(path).st_mode))
        {mode(job.log_dir), mode(own.log_dir)}, {mode(r.log) for j in (job, own) for r in j.ranks}
    """)
    assert cell.result == "({'0o700'}, {'0o600'})"


def test_no_command_is_text_for_a_shell():
    """The guard's script is a constant; nothing else may come near a shell."""
    calls = re.compile(r"shell\s*=\s*True|os\.system|os\.popen|getoutput|getstatusoutput")
    package = Path(nbstate.__file__).parent
    found = [path.name for path in package.rglob("*.py") if calls.search(path.read_text())]
    assert found == []


def test_what_a_rank_unpickles_comes_from_the_kernels_pipe_only(notebook):
    cell = notebook.run("""
        import tempfile, psutil
        def train():
            # Neither a file nor a port stands between kernel and rank that others could write to.
            mine = psutil.Process()
            opened = [file.path for file in mine.open_files()]
            all_there_are = psutil.net_connections("tcp")
            return [c.status for c in all_there_are if c.pid == os.getpid()], opened
        connections, files = notebook_launcher(train, num_processes=2, view="silent")[0]
        "LISTEN" in connections, [f for f in files if f.startswith(tempfile.gettempdir()) and "log" not in f]
    """)
    assert cell.result == "(False, [])"

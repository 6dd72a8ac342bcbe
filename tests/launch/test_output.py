"""What ranks print reaches the cell and the logs, whoever prints it and however."""

from __future__ import annotations

SETUP = """
import ctypes, logging, os, subprocess, sys
from nbstate import launch, notebook_launcher
log = logging.getLogger("of the notebook")
handler = logging.StreamHandler(sys.stdout)      # keeps the kernel's stream
handler.setFormatter(logging.Formatter("logged %(message)s"))
log.addHandler(handler)
"""


def test_text_from_python_c_and_child_programs(shared_kernel):
    shared_kernel.run(SETUP)
    cell = shared_kernel.run("""
        kept = sys.stdout
        def train():
            libc = ctypes.CDLL(None)
            print("from python", flush=True)
            libc.puts(b"from C")
            libc.fflush(None)
            subprocess.run(["echo", "from a program"])
            os.write(1, b"from a descriptor\\n")
            log.warning("by a handler")
            kept.write("by a kept stream\\n")
            print("to stderr", file=sys.stderr)
        job = launch(train, num_processes=2)
        job.wait()
        for rank in job.ranks:
            assert rank.log.read_text() == job.logs(rank.index)
        job.ranks[1].stdout.splitlines(), job.ranks[1].stderr
    """)
    assert cell.error is None
    for text in ("from python", "from C", "from a program", "from a descriptor"):
        assert f"] {text}\n" in cell.stdout, "folded or not, as it came"
        assert f"'{text}'" in cell.result
    assert "] logged by a handler" in cell.stdout
    assert "] by a kept stream" in cell.stdout
    assert "] to stderr" in cell.stderr
    assert cell.result.endswith("'to stderr\\n')")


def test_a_stream_of_the_functions_own_may_have_nothing_but_write(shared_kernel):
    shared_kernel.run(SETUP)
    cell = shared_kernel.run("""
        class Tee:
            def __init__(self, stream): self.stream = stream
            def write(self, text): self.stream.write(f"teed {text}")
        def train():
            sys.stdout = Tee(sys.stdout)
            print("a line")
            return 1
        list(notebook_launcher(train, num_processes=2))
    """)
    assert cell.result == "[1, 1]"
    assert "teed a line" in cell.stdout


def test_lines_of_two_ranks_are_never_mixed(shared_kernel):
    shared_kernel.run(SETUP)
    cell = shared_kernel.run("""
        def train():
            rank = os.environ["RANK"]
            for step in range(20_000):
                print("rank", rank, "step", step, "loss", 0.5)
        job = launch(train, num_processes=2)
        job.wait()
        [
            job.logs(r) == "".join(f"rank {r} step {s} loss 0.5\\n" for s in range(20_000))
            for r in range(2)
        ]
    """)
    assert cell.result == "[True, True]"
    lines = [line for line in cell.stdout.splitlines() if line.startswith("[")]
    assert 0 < len(lines) < 20_000, "the cell shows a bounded part"
    assert len([m for m in cell.messages if m["msg_type"] == "stream"]) < 200
    assert "lines only in " in cell.stdout


def test_text_between_many_messages_is_all_heard(shared_kernel):
    shared_kernel.run(SETUP)
    cell = shared_kernel.run("""
        import nbstate.metrics
        def train():
            for step in range(3_000):
                nbstate.log(step=step)
                nbstate.metrics.flush()          # a message of its own for every line
                os.write(1, b"x" * 999 + b"\\n")
        job = launch(train, num_processes=2)
        job.wait()
        [rank.log.stat().st_size for rank in job.ranks]
    """)
    assert cell.result == "[3000000, 3000000]"


def test_ten_megabytes_without_a_newline(shared_kernel):
    shared_kernel.run(SETUP)
    cell = shared_kernel.run("""
        import psutil
        def train():
            os.write(1, b"x" * 10_000_000)
        before = psutil.Process().memory_info().rss
        job = launch(train, num_processes=2)
        job.wait()
        grown = psutil.Process().memory_info().rss - before
        sizes = [rank.log.stat().st_size for rank in job.ranks]
        sizes, grown < 100e6, len(job.ranks[0].stdout) <= 1 << 20
    """)
    assert cell.error is None
    assert cell.result == "([10000000, 10000000], True, True)"
    assert len(cell.stdout) < 1_000_000


def test_a_line_without_an_end_arrives_while_the_rank_works_on(shared_kernel):
    shared_kernel.run(SETUP)
    cell = shared_kernel.run("""
        def train():
            print("loading", "...", end="")
            while not os.path.exists("go on"):
                pass
        job = launch(train, num_processes=1)
        while job.ranks[0].stdout != "loading ...":
            pass
        open("go on", "w").close()
        job.wait()
    """)
    assert cell.error is None


def test_bytes_that_are_no_text_and_terminal_codes(shared_kernel):
    shared_kernel.run(SETUP)
    cell = shared_kernel.run("""
        def train():
            os.write(1, b"bad \\xff\\xfe bytes\\n")
            os.write(1, b"nul \\x00 byte\\n")
            print("\\x1b[31mred\\x1b[0m")
            print("10%\\r50%\\r100%")
        job = launch(train, num_processes=1)
        job.wait()
        job.ranks[0].log.read_bytes()
    """)
    assert cell.error is None
    assert cell.result == (
        "b'bad \\xff\\xfe bytes\\nnul \\x00 byte\\n\\x1b[31mred\\x1b[0m\\n10%\\r50%\\r100%\\n'"
    )
    assert "bad \ufffd\ufffd bytes" in cell.stdout
    assert "100%" in cell.stdout
    assert "50%" not in cell.stdout


def test_logs_are_private_and_in_the_folder_that_was_asked_for(shared_kernel):
    shared_kernel.run(SETUP)
    cell = shared_kernel.run("""
        import stat
        job = launch(print, "hello", num_processes=2, log_dir="logs of this run")
        job.wait()
        temporary = launch(print, "hello", num_processes=2)
        temporary.wait()
        places = temporary.log_dir, temporary.ranks[0].log
        modes = [oct(stat.S_IMODE(place.stat().st_mode)) for place in places]
        sorted(os.listdir("logs of this run")), modes
    """)
    assert cell.result == "(['rank0.log', 'rank1.log'], ['0o700', '0o600'])"

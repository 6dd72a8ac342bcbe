"""Whatever ranks print, the kernel stays small, the log is whole and the page is text."""

from __future__ import annotations

FLOODS = """
import resource
def grown(train, **options):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    job = launch(train, num_processes=2, view="plain")
    job.wait()
    return job, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
"""


def test_fifty_megabytes_at_once(notebook):
    notebook.run(FLOODS)
    cell = notebook.run("""
        def train():
            line = b"x" * 79 + b"\\n"
            for _ in range(5 * 128):
                os.write(1, line * 1024)
        job, megabytes = grown(train)
        size = 5 * 128 * 1024 * 80
        kept = len(job.ranks[0].stdout) < 1 << 20
        [rank.log.stat().st_size == size for rank in job.ranks], megabytes < 100, kept
    """)
    assert cell.error is None
    assert cell.result == "([True, True], True, True)"
    assert len(cell.stdout) < 5_000_000


def test_one_line_of_ten_megabytes(notebook):
    notebook.run(FLOODS)
    cell = notebook.run("""
        def train():
            print("y" * 10_000_000)
            print("after")
        job, megabytes = grown(train)
        [rank.log.stat().st_size for rank in job.ranks], megabytes < 100, job.ranks[1].stdout[-7:]
    """)
    assert cell.error is None
    assert cell.result == "([10000007, 10000007], True, 'y\\nafter\\n'[-7:])".replace(
        "'y\\nafter\\n'[-7:]", repr("y\nafter\n"[-7:])
    )
    assert len(cell.stdout) < 5_000_000


def test_bytes_that_are_no_text_and_escapes(notebook):
    escapes = b"\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[2J<b>bold</b>\n"
    raw = b"\xff\xfe broken \xc3\n\x00nul\x00\n" + escapes
    cell = notebook.run(f"""
        raw = {raw!r}
        def train():
            os.write(1, raw)
            os.write(2, raw)
        job = launch(train, num_processes=2, view="plain")
        job.wait()
        [rank.log.read_bytes() == raw * 2 for rank in job.ranks], job.ranks[0].stdout
    """)
    assert cell.error is None
    assert "[True, True]" in cell.result
    assert "\\ufffd" in ascii(cell.result)
    page = "".join(str(bundle.get("text/html", "")) for bundle in cell.displays)
    assert "<b>bold</b>" not in page


def test_a_rank_that_closes_or_replaces_its_streams(notebook):
    cell = notebook.run("""
        def closes(): sys.stdout.close(); os.close(1); os.close(2); return 1
        def replaces(): sys.stdout = None; sys.stderr = open(os.devnull, "w"); return 2
        [list(notebook_launcher(function, num_processes=2)) for function in (closes, replaces)]
    """)
    assert cell.error is None
    assert cell.result == "[[1, 1], [2, 2]]"

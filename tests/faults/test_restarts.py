"""`max_restarts`: ranks that failed are started anew, and it is told how often and why."""

from __future__ import annotations


def test_a_run_that_fails_twice_succeeds_at_its_third_time(notebook):
    cell = notebook.run("""
        def train():
            attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            print("attempt", attempt)
            state = PartialState()
            if attempt < 2 and state.process_index == attempt:
                raise ValueError(f"boom {attempt}")
            dist.barrier()
            return attempt, os.environ["TORCHELASTIC_MAX_RESTARTS"]
        job = launch(train, num_processes=2, max_restarts=3, view="silent")
        text = job.ranks[0].stdout.splitlines() if job.wait() else None
        list(job.wait()), job.restarts, job.state, job.notes, text
    """)
    assert cell.error is None
    assert eval(cell.result) == (
        [(2, "3"), (2, "3")],
        2,
        "done",
        [
            "restart 1 of 3: rank 0 of 2: ValueError: boom 0",
            "restart 2 of 3: rank 1 of 2: ValueError: boom 1",
        ],
        ["attempt 0", "attempt 1", "attempt 2"],
    )


def test_a_run_that_always_fails_tells_the_last_failure_and_the_count(notebook):
    cell = notebook.run("""
        def train():
            attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            if os.environ["RANK"] == "1":
                if attempt == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                sys.exit(f"attempt {attempt}")
            PartialState()
        notebook_launcher(train, num_processes=2, max_restarts=2)
    """)
    assert cell.error.evalue.startswith("rank 1 of 2: SystemExit: attempt 2")
    assert "It failed again after 2 restarts; this is the last failure." in cell.error.evalue
    assert "restart 1 of 2: rank 1 of 2: killed by SIGKILL" in cell.stdout
    assert "restart 2 of 2: rank 1 of 2: SystemExit: attempt 1" in cell.stdout


def test_a_port_of_ones_own_serves_every_attempt(notebook):
    cell = notebook.run("""
        import socket
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        def train():
            state = PartialState()
            state.wait_for_everyone()
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                raise ValueError("once")
            return int(os.environ["MASTER_PORT"])
        set(notebook_launcher(train, num_processes=2, max_restarts=1, use_port=port)) == {port}
    """)
    assert cell.result == "True"


def test_what_was_stopped_or_took_too_long_is_not_started_anew(notebook):
    cell = notebook.run("""
        def train():
            print("up")
            time.sleep(600)
        job = launch(train, num_processes=2, max_restarts=3, view="silent")
        while job.ranks[1].stdout != "up\\n":
            time.sleep(0.01)
        job.stop()
        while not job.done:
            time.sleep(0.01)
        late = launch(train, num_processes=2, max_restarts=3, timeout=0.5, view="silent")
        while not late.done:
            time.sleep(0.01)
        job.state, job.restarts, type(job.error).__name__, late.restarts, type(late.error).__name__
    """)
    assert cell.result == "('stopped', 0, 'JobStoppedError', 0, 'RankTimeoutError')"


def test_the_arguments_are_the_same_at_every_attempt(notebook):
    cell = notebook.run("""
        big = torch.arange(100_000)
        def train(big):
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                raise ValueError("once")
            return big.sum().item()
        list(notebook_launcher(train, (big,), num_processes=2, max_restarts=1)), big.sum().item()
    """)
    assert cell.error is None
    assert cell.result == "([4999950000, 4999950000], 4999950000)"


def test_a_limit_that_only_a_further_attempt_meets_is_named(notebook, tmp_path):
    cell = notebook.run(f"""
        import resource
        go = {str(tmp_path / "go")!r}
        def train():
            while not os.path.exists(go):
                time.sleep(0.01)
            raise ValueError("once more")
        first_free = os.dup(0)
        os.close(first_free)
        job = launch(train, num_processes=2, max_restarts=1, view="silent")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + 10, hard))
            os.mkdir(go)  # for a file there is no descriptor left
            while not job.done:
                time.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        try:
            job.wait()
        except OSError as error:
            print(error)
    """)
    assert cell.error is None
    assert "the 2 ranks could not be started" in cell.stdout
    assert "ulimit -n" in cell.stdout

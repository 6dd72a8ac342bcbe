"""A launch works from wherever it is called, or says in one error why not."""

from __future__ import annotations


def test_from_a_background_thread(notebook):
    cell = notebook.run("""
        found = []
        def work(): found.append(list(notebook_launcher(train, num_processes=2, view="silent")))
        def train(): return PartialState().num_processes
        thread = threading.Thread(target=work)
        thread.start(), thread.join()
        found
    """)
    assert cell.result == "[[2, 2]]"


def test_from_an_asyncio_task(notebook):
    cell = notebook.run("""
        import asyncio
        def train(): return PartialState().num_processes
        async def blocking(): return list(notebook_launcher(train, num_processes=2, view="silent"))
        async def free(): return list(await launch(train, num_processes=2, view="silent"))
        await asyncio.gather(asyncio.create_task(blocking()), asyncio.create_task(free()))
    """)
    assert cell.error is None
    assert cell.result == "[[2, 2], [2, 2]]"


def test_several_jobs_at_once_do_not_hear_each_other(notebook):
    cell = notebook.run("""
        def train(name):
            state = PartialState()
            print(name)
            total = torch.ones(1) * name
            dist.all_reduce(total)
            while not os.path.exists("all started"):
                time.sleep(0.01)
            if name == 2 and state.process_index == 1:
                raise ValueError("only here")
            return total.item()
        jobs = [launch(train, name, num_processes=2, view="silent") for name in range(4)]
        while any("\\n" not in rank.stdout for job in jobs for rank in job.ranks):
            time.sleep(0.01)
        open("all started", "w").close()
        outcomes = []
        for job in jobs:
            try:
                outcomes.append(list(job.wait()))
            except RankError as error:
                outcomes.append(error.rank)
        outcomes, [job.logs(1) for job in jobs]
    """)
    assert cell.error is None
    assert (
        cell.result == "([[0.0, 0.0], [2.0, 2.0], 1, [6.0, 6.0]], ['0\\n', '1\\n', '2\\n', '3\\n'])"
    )


def test_from_inside_a_rank_is_one_clear_error(notebook):
    cell = notebook.run("""
        def outer(): return notebook_launcher(print, num_processes=2)
        notebook_launcher(outer, num_processes=2)
    """)
    assert "RuntimeError: this is rank" in cell.error.evalue
    assert "a rank cannot launch ranks" in cell.error.evalue

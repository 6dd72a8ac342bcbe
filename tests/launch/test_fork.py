"""Ranks forked from a live kernel work, whatever the kernel has done before."""

from __future__ import annotations


def test_operators_that_use_threads_work_after_the_kernel_used_them(kernel):
    cell = kernel.run("""
        import torch
        from nbstate import notebook_launcher
        a = torch.randn(1200, 1200, requires_grad=True)
        (a @ a).exp().sum().backward()
        big = torch.ones(3000, 3000) + 1
        def train():
            b = torch.randn(1200, 1200, requires_grad=True)
            (b @ b).sigmoid().sum().backward()
            conv = torch.nn.Conv2d(3, 8, 3)(torch.randn(8, 3, 64, 64)).sum()
            return (a @ a).sum().item(), (big + 1).sum().item(), bool(conv.isfinite())
        results = notebook_launcher(train, num_processes=2, threads_per_rank=2)
        results[0] == results[1], results[0][1:]
    """)
    assert cell.result == "(True, (27000000.0, True))"


def test_data_loader_workers_find_the_notebooks_classes(shared_kernel):
    cell = shared_kernel.run("""
        import multiprocessing, torch
        from torch.utils.data import DataLoader, Dataset
        from nbstate import PartialState, notebook_launcher
        multiprocessing.set_start_method("forkserver", force=True)
        class Numbers(Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): return torch.tensor([i, PartialState().process_index])
        def train():
            PartialState()
            batches = DataLoader(Numbers(), batch_size=4, num_workers=2)
            return torch.cat(list(batches))
        first, second = notebook_launcher(train, num_processes=2)
        method = multiprocessing.get_start_method()
        multiprocessing.set_start_method(None, force=True)
        first[:, 0].tolist(), set(first[:, 1].tolist()), set(second[:, 1].tolist()), method
    """)
    assert cell.result == "([0, 1, 2, 3, 4, 5, 6, 7], {0}, {1}, 'forkserver')"


def test_a_rank_may_set_signal_handlers_and_start_programs(shared_kernel):
    cell = shared_kernel.run("""
        import os, signal, subprocess
        from nbstate import notebook_launcher
        def train():
            got = []
            signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
            os.kill(os.getpid(), signal.SIGUSR1)
            said = subprocess.check_output(["echo", "hi"]).decode()
            return got, said, os.getpgid(0) == os.getpid()
        notebook_launcher(train, num_processes=2)[1]
    """)
    assert cell.result == "([1], 'hi\\n', True)"


def test_no_rank_listens_where_the_kernel_listens(shared_kernel):
    cell = shared_kernel.run("""
        import os, psutil
        from nbstate import notebook_launcher
        def listening():
            mine = [c for c in psutil.net_connections() if c.pid == os.getpid()]
            return [c.laddr.port for c in mine if c.status == "LISTEN"]
        len(listening()) > 0, list(notebook_launcher(listening, num_processes=2))
    """)
    assert cell.result == "(True, [[], []])"


def test_the_process_group_is_the_functions_own_to_make_and_ours_to_end(shared_kernel):
    cell = shared_kernel.run("""
        import torch.distributed as dist
        from nbstate import PartialState, notebook_launcher
        def asks(): return dist.is_initialized()
        def makes(): dist.init_process_group("gloo"); dist.barrier(); return dist.get_world_size()
        def ends(): PartialState(); dist.destroy_process_group(); return dist.is_initialized()
        def keeps(): PartialState().destroy_process_group(); return dist.is_initialized()
        def ask(f): return list(notebook_launcher(f, num_processes=2, view="silent"))
        [ask(f) for f in (asks, makes, ends, keeps)]
    """)
    assert cell.result == "[[False, False], [2, 2], [False, False], [True, True]]"
    assert cell.stderr == ""


def test_a_rank_cannot_launch_ranks(shared_kernel):
    cell = shared_kernel.run("""
        from nbstate import notebook_launcher
        def outer(): return notebook_launcher(print, num_processes=2)
        notebook_launcher(outer, num_processes=2)
    """)
    assert "RuntimeError: this is rank" in cell.error.evalue
    assert "a rank cannot launch ranks" in cell.error.evalue


def test_the_store_listens_on_loopback_only(shared_kernel):
    cell = shared_kernel.run("""
        import os, psutil
        from nbstate import PartialState, notebook_launcher
        def train():
            PartialState().wait_for_everyone()
            port = int(os.environ["MASTER_PORT"])
            kernels = [c for c in psutil.net_connections() if c.pid == os.getppid()]
            listening = [c for c in kernels if c.status == "LISTEN"]
            return [c.laddr.ip for c in listening if c.laddr.port == port]
        list(notebook_launcher(train, num_processes=2))
    """)
    assert cell.result == "[['127.0.0.1'], ['127.0.0.1']]"


def test_the_usual_port_may_be_taken_and_a_given_one_is_used(shared_kernel):
    cell = shared_kernel.run("""
        import os, socket
        from nbstate import PartialState, notebook_launcher
        def train(): PartialState().wait_for_everyone(); return os.environ["MASTER_PORT"]
        with socket.create_server(("127.0.0.1", 29500)):
            taken = notebook_launcher(train, num_processes=2)[0] != "29500"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        taken, notebook_launcher(train, num_processes=2, use_port=port)[0] == str(port)
    """)
    assert cell.result == "(True, True)"

"""Sessions of fresh processes: what they lack of the kernel is pushed or travels with the code."""

from __future__ import annotations


def test_a_session_of_fresh_processes(kernel):
    kernel.run(
        """
        %load_ext nbstate
        import nbstate, torch
        session = nbstate.Session(2, start_method="forkserver")
    """.replace("        ", "")
    )
    cell = kernel.run(
        "%%ranks\nprint('hi')\nfrom IPython.display import HTML\nvalue = rank + 1\nHTML('<b>x</b>')"
    )
    assert cell.error is None, cell.error
    assert cell.stdout == "[0-1] hi\n[0-1]\n"
    assert [display["text/html"] for display in cell.displays] == ["<b>x</b>"]
    assert kernel.run("%%ranks\nvalue").stdout == "[0] 1\n[1] 2\n"
    cell = kernel.run("""
        class Net(torch.nn.Linear): ...
        def make(): return Net(2, 2)
        nets = session.run(make)
        session.push(net=nets[1])
        type(nets[0]) is Net, session.run(lambda: isinstance(net, Net))
    """)
    assert cell.result == "(True, RankResults([True, True]))"
    cell = kernel.run("%%ranks 1\n1 / 0")
    assert "----> 2 1 / 0" in cell.error.traceback
    cell = kernel.run("session.run(lambda: 1 / 0)")
    assert "session.run(lambda: 1 / 0)" in cell.error.traceback
    kernel.run("session.close()")

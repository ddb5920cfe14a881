"""How workers begin and end: with their judge, by an interrupt, within their limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qkvac.isolation.process import default_memory
from qkvac.tests.suite.hostile import MARK, bad, marked, outlived
from qkvac.tests.suite.workers import Ports, arrays, ask, closing

pytestmark = pytest.mark.skipif(os.name != "posix", reason="workers need POSIX")

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[Ports]:
    with closing(tmp_path) as made:
        yield made


def test_an_interrupt_ends_the_call_that_waits_and_refuses_later_ones(ports: Ports) -> None:
    worker = ports("def attention(*arrays): time.sleep(60)")
    worker.hello()
    killer = threading.Timer(0.3, worker.interrupt)
    started = time.monotonic()
    killer.start()
    assert worker.call("attention", arrays(4)).status == "crash"
    assert time.monotonic() - started < 15
    again = worker.call("attention", arrays(4))
    assert (again.status, again.reason) == ("crash", "the run was ended")


def test_a_closed_worker_starts_again(ports: Ports) -> None:
    worker = ports("attention = good")
    with worker:
        pid = worker.hello().environment["pid"]
    worker.close()
    assert ask(worker, 4).ok
    assert worker.hello().environment["pid"] != pid
    assert worker.starts == 2


def test_an_interrupted_wait_leaves_nothing(ports: Ports) -> None:
    worker = ports(bad("time.sleep(60)"))
    worker.hello()

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            ask(worker, 1)
    finally:
        signal.signal(signal.SIGALRM, previous)
    if sys.platform == "linux":
        assert not outlived(ports.mark)
    assert ask(worker, 4).ok


HOST = """
import sys
from qkvac.isolation.process import Target, Worker
import numpy as np
worker = Worker(Target(port={port!r}), environment={{{mark_name!r}: {mark!r}}})
print(worker.hello().environment["pid"], flush=True)
X, W = np.ones((1, 5), "f4"), np.ones((5, 3), "f4")
{then}
"""


@LINUX
@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_workers_die_with_a_killed_judge(ports: Ports, busy: bool) -> None:
    port = ports(bad("subprocess.Popen(['sleep', '60'])\nwhile True: pass"))
    call = 'worker.call("attention", {"X": X, "Wq": W, "Wk": W, "Wv": W})'
    source = HOST.format(
        port=port.target.port,
        mark_name=MARK,
        mark=ports.mark,
        then=call if busy else "import time; time.sleep(60)",
    )
    host = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    assert int(host.stdout.readline()) > 0
    time.sleep(0.5)
    assert len(marked(ports.mark)) == (2 if busy else 1)
    host.kill()
    host.wait()
    host.stdout.close()
    assert not outlived(ports.mark)


def test_workers_end_when_the_judge_exits(ports: Ports) -> None:
    port = ports("attention = good\nthreading.Thread(target=time.sleep, args=(60,)).start()")
    source = HOST.format(port=port.target.port, mark_name=MARK, mark=ports.mark, then="")
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", source], check=True, stdout=subprocess.DEVNULL)
    assert time.monotonic() - start < 10


def test_a_forked_judge_does_not_end_the_worker(ports: Ports) -> None:
    worker = ports("attention = good")
    worker.hello()
    child = os.fork()
    if child == 0:
        worker.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert ask(worker, 4).ok
    assert worker.starts == 1


def test_descriptors_are_given_back(ports: Ports) -> None:
    worker = ports(bad("os._exit(1)"))
    ask(worker, 1)
    before = len(os.listdir("/dev/fd"))
    for _ in range(3):
        ask(worker, 1)
    assert len(os.listdir("/dev/fd")) == before


def test_memory_is_limited(ports: Ports) -> None:
    small = ports(bad("np.ones(1 << 28)"), memory=1 << 30)
    assert ask(small, 1).reason.startswith("out of memory")
    assert ask(small, 4).ok
    assert small.starts == 1
    assert 0 < default_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2

"""Run as a program: processes that write one entry, are killed, run together or have a full disk.

    python -m tests.cache.writers calls|moments|crowd|full DIRECTORY STATE_DIRECTORY [NUMBER]

Each generation of the entry has files that say which one they belong to, so a mixture would show.
The last line of the output is a JSON object with counts. Children are forked: one interpreter does
hundreds of kills.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from nnasync._core.cache import Store, fill
from tests.cache.entries import KEY, MODEL, Files, read, write

COUNTED = ("open", "write", "fsync", "replace", "link", "unlink", "pwrite", "close", "ftruncate")
SIZES = (10, 300_000, 5000)
CHILDREN = 8
ROUNDS = 10


def generation(number: int) -> Files:
    """The files of one writing."""
    model, large, data = (number.to_bytes(4, "little") * size for size in SIZES)
    return [model, large], [data]


def generation_of(files: Files) -> int:
    """Which writing these files are of; raises ValueError if they are mixed or cut."""
    number = int.from_bytes(files[0][0][:4], "little")
    if files != generation(number):
        raise ValueError("the files of an accepted entry are not of one writing")
    return number


def forked(work: Callable[..., object], *args: object) -> int:
    """The wait status of a child that does some work."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(*args)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def killed_at_call(store: Store, number: int, calls: int) -> None:
    """Write a generation, and die right before the call of that number."""
    killed_before(calls, lambda: write(store, generation(number)))


def killed_before(calls: int, work: Callable[[], object]) -> None:
    """Do some work, and die right before the call of that number."""
    left = iter(range(calls))

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return counted

    for name in COUNTED:
        setattr(os, name, counting(getattr(os, name)))
    work()


def killed_at_moment(store: Store, number: int, delay_s: float) -> None:
    """Write generations without end, and die after a while."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, delay_s)
    while True:
        write(store, generation(number))
        number += 1


def calls(store: Store) -> dict[str, int]:
    """Kill a writer before each of its system calls: of a first entry, and of a later one."""
    counts = {"kills": 0, "hits": 0, "misses": 0, "finished": 0, "lost": 0}
    for older in (False, True):
        for before in range(10_000):
            if older:
                write(store, generation(0))
            status = forked(killed_at_call, store, before + 1, before)
            look(store, counts)
            counts["lost"] += older and isinstance(read(store), str)
            if os.WIFEXITED(status):
                counts["finished"] += os.WEXITSTATUS(status) == 0
                break
            counts["kills"] += 1
    return counts


def moments(store: Store, kills: int) -> dict[str, int]:
    """Kill writers at random moments."""
    counts = {"kills": 0, "hits": 0, "misses": 0}
    choose = random.Random(kills)
    for index in range(kills):
        delay_s = choose.uniform(1e-4, 0.1)
        status = forked(killed_at_moment, store, index * 1000, delay_s)
        counts["kills"] += os.WIFSIGNALED(status)
        look(store, counts)
    return counts


def look(store: Store, counts: dict[str, int]) -> None:
    """What is accepted must be of one writing."""
    found = read(store)
    if isinstance(found, str):
        counts["misses"] += 1
    else:
        generation_of(found)
        counts["hits"] += 1


def crowd(store: Store) -> dict[str, int]:
    """Processes that all write and read one entry at once, from a cold start on."""
    start, go = os.pipe()
    children = []
    for number in range(CHILDREN):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(start, 1)  # returns when the parent closes its end
            os._exit(work_in_crowd(store, number))
        children.append(child)
    os.close(go)
    os.close(start)
    codes = [os.WEXITSTATUS(os.waitpid(child, 0)[1]) for child in children]
    look(store, counts := {"hits": 0, "misses": 0})
    return counts | {"children": codes.count(0)}


def work_in_crowd(store: Store, number: int) -> int:
    """0 if all writings were stored and all that was read was of one writing."""
    try:
        for turn in range(ROUNDS):
            writing = write(store, generation(number * ROUNDS + turn))
            found = read(store)
            if not writing.stored or isinstance(found, str):
                sys.stderr.write(f"{number}: {writing.reason or found}\n")
                return 1
            generation_of(found)
    except BaseException as error:
        sys.stderr.write(f"{number}: {error!r}\n")
        return 2
    return 0


def full(store: Store) -> dict[str, int]:
    """No file may grow beyond a limit, as on a full disk."""
    counts = {"hits": 0, "misses": 0, "stored": 0, "refused": 0}
    for limit in (*range(0, 2048, 128), 1 << 14, 1 << 18, 1_200_000, 1 << 22):
        status = forked(limited, store, limit)
        counts["stored" if os.WEXITSTATUS(status) == 0 else "refused"] += 1
        look(store, counts)
    return counts


def limited(store: Store, limit: int) -> None:
    """Write with that limit; ends the process with 3 where nothing was stored."""
    with store.write(KEY, MODEL, (2, 1)) as writing:
        for fd, content in zip(writing.fds, itertools.chain(*generation(limit)), strict=True):
            fill(fd, content)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    if not writing.stored:
        os._exit(3)


def main(task: str, directory: str, state_directory: str, number: str = "0") -> None:
    """Do a task and print its counts."""
    store = Store(directory, state_directory)
    if task == "moments":
        counts = moments(store, int(number))
    else:
        counts = {"calls": calls, "crowd": crowd, "full": full}[task](store)
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])

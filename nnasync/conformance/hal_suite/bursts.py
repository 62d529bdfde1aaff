"""Group "bursts": whatever a client sends, a burst answers each message once and goes on serving.

Of a message that is right, every part is removed, replaced by every kind of garbage, and preceded
by garbage; bytes are cut off, appended and flipped. What this leaves legal may be answered either
way; all else must be answered with an error that tells neither shapes nor timing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from nnasync.conformance.cases import Case
from nnasync.conformance.hal_suite.burst_client import Client, Sense, check_error, message_of
from nnasync.conformance.hal_suite.burst_messages import changes
from nnasync.conformance.hal_suite.check import Check
from nnasync.conformance.hal_suite.fixture import Bench, check_timing
from nnasync.conformance.paths import CaseBuffers
from nnasync.conformance.trial import Fault
from nnasync.errors import InvalidArgument, NNError, ResourceExhaustedTransient
from nnasync.hal import ErrorStatus, Timing
from nnasync.memory import Pool

GROUP = "bursts"
_MANGLED_SUBJECTS = 3
"""How many subjects have their messages mangled: those of others have the same form."""

Act = Callable[[Client], Awaitable[None]]


def bursts(bench: Bench) -> Iterator[Check]:
    """The checks of the group."""
    subjects = bench.legal_subjects
    for case in subjects:
        for name, act in _ACTS.items():
            yield _check(bench, case, name, act)
    for case in subjects[:_MANGLED_SUBJECTS]:
        message = message_of(CaseBuffers(case).request())
        for number, (what, changed) in enumerate(changes(message)):
            if number % bench.every == 0:
                yield _check(bench, case, what, _sends(changed))


def _check(bench: Bench, case: Case, name: str, act: Act) -> Check:
    async def run() -> None:
        async with Client(await bench.ready(case)) as client:
            await act(client)

    return Check(GROUP, f"{case.name}: {name}", run)


def _sends(message: bytes) -> Act:
    """Send a changed message, then a right one."""

    async def act(client: Client) -> None:
        sense = client.sense_of(message)
        if sense is Sense.WRONG:
            await client.refused(message)
        else:
            client.send(message)
            if sense is Sense.LEGAL:
                answer = await client.answer()
                if answer.status != ErrorStatus.NONE:
                    check_error(answer)
        await client.check_serves()

    return act


async def _measured(client: Client) -> None:
    for measure in (False, True):
        client.send(message_of(client.ready.request, measure=measure))
        answer = await client.answer()
        check_timing(Timing(answer.time_on_device_ns, answer.time_in_driver_ns), measure=measure)


async def _slots_freed(client: Client) -> None:
    """Freeing is harmless, twice and of what nobody knows; a freed slot is asked for again."""
    await client.check_serves()
    asked = len(client.asked)
    slots = list(client.memories)
    for slot in (*slots, *slots, 0, -1, 2**31):
        client.free(slot)
    await client.check_serves()
    if client.asked[asked:] != slots:
        raise Fault(f"after slots {slots} were freed, the device asks for {client.asked[asked:]}")


async def _slots_kept(client: Client) -> None:
    for _ in range(3):
        await client.check_serves()
    if len(client.asked) != len(client.memories):
        raise Fault(f"the device asks for a slot more than once: {client.asked}")


async def _memory_refused(client: Client) -> None:
    known = client.give

    def refuse(slots: object) -> tuple[Pool, ...]:
        raise InvalidArgument("no such slot")

    for give in (refuse, lambda slots: ()):
        client.give = give
        await client.refused(message_of(client.ready.request))
    client.give = known
    await client.check_serves()


async def _memory_too_small(client: Client) -> None:
    known = client.give
    with Pool.allocate(1) as tiny:
        client.give = lambda slots: (tiny,) * len(slots)
        await client.refused(message_of(client.ready.request))
        client.give = known
        for slot in client.memories:
            client.free(slot)
        await client.check_serves()


async def _answers_not_taken(client: Client) -> None:
    """A client whose channel is full loses its burst, and nothing else."""

    def full(answer: bytes) -> None:
        raise ResourceExhaustedTransient("the channel is full")

    client.results.listen(full)
    client.send(message_of(client.ready.request))
    await client.ready.run()
    client.send(b"garbage")
    await client.ready.run()


async def _closed(client: Client) -> None:
    """A closed burst carries nothing out; closing it again is harmless."""
    await client.check_serves()
    if client.context is None:
        raise Fault("no context came with the burst")
    client.context.close()
    client.context.close()
    try:
        client.send(message_of(client.ready.request))
    except NNError:
        pass
    else:
        answer = await client.answer()
        if answer.status == ErrorStatus.NONE:
            raise Fault("a closed burst carries a request out")
    await client.ready.run()


async def _two_at_once(client: Client) -> None:
    async with Client(client.ready) as other:
        for _ in range(2):
            await client.check_serves()
            await other.check_serves()
    await client.check_serves()


_ACTS: dict[str, Act] = {
    "timing": _measured,
    "slots are remembered": _slots_kept,
    "slots freed": _slots_freed,
    "memory refused": _memory_refused,
    "memory too small": _memory_too_small,
    "answers not taken": _answers_not_taken,
    "closed": _closed,
    "two bursts": _two_at_once,
}

"""Stands for the system where threads ask it for policies."""

from __future__ import annotations

import os
import threading

import pytest

from nnasync._core import giving_way
from nnasync._core.real_time import Policy

USUAL = Policy(0, 0)


class System:
    """Stands for the system: policies of threads, and whether they may have others."""

    def __init__(self) -> None:
        self.policies: dict[int, Policy] = {}
        self.permits = True
        self.clears_flag = True

    def here(self) -> Policy:
        return self.policies.get(threading.get_ident(), USUAL)

    def set_scheduler(self, thread: int, number: int, priority: os.sched_param) -> None:
        assert thread == 0, "each thread changes its own policy alone"
        flag = os.SCHED_RESET_ON_FORK
        is_flag_lost = self.here().number & flag and not number & flag
        is_raised = priority.sched_priority > self.here().priority
        if (is_flag_lost and not self.clears_flag) or (is_raised and not self.permits):
            raise PermissionError(1, "Operation not permitted")
        self.policies[threading.get_ident()] = Policy(number, priority.sched_priority)

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> System:
        """Takes the place of the system's calls until the test ends."""
        monkeypatch.setattr(os, "sched_getscheduler", lambda _: self.here().number)
        monkeypatch.setattr(os, "sched_getparam", lambda _: os.sched_param(self.here().priority))
        monkeypatch.setattr(os, "sched_setscheduler", self.set_scheduler)
        monkeypatch.setattr(giving_way, "_leave_to_others", Policy.apply)
        return self

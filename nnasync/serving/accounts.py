"""What became of each request, by model and client: every one has exactly one outcome.

The words are those of `nnasync.tracing.tally`: submitted = completed + cancelled + missed +
refused + failed + pending, at every moment.
"""

from __future__ import annotations

from collections.abc import Iterable

from nnasync.tracing.families import Family, Sample
from nnasync.tracing.tally import Tally

OTHERS = "(others)"
"""Clients beyond the number that is told apart."""
UNKNOWN = "(unknown)"
"""Models that requests name and that are not there."""


class ClientAccount:
    """Counts what became of the requests of one client for one version of a model."""

    __slots__ = ("client", "model", "tally", "version")

    def __init__(self, model: str, version: str, client: str) -> None:
        self.model = model
        self.version = version
        self.client = client
        self.tally = Tally()

    @property
    def pending(self) -> int:
        """Returns how many requests have no outcome so far."""
        ended = sum(self.tally.outcomes().values())
        return self.tally.calls - ended


class ClientAccounts:
    """Keeps the accounts of all clients and models, and gives them out as metrics."""

    def __init__(self, clients: int) -> None:
        """Tells the first `clients` clients apart; later ones share the account `OTHERS`."""
        self._limit = clients
        self._clients: set[str] = set()
        self._accounts: dict[tuple[str, str, str], ClientAccount] = {}

    def of(self, model: str, version: str, client: str) -> ClientAccount:
        """Returns the account of this client with this version of a model; opens it at first."""
        key = (model, version, client)
        account = self._accounts.get(key)
        return account if account is not None else self._opened(model, version, client)

    def _opened(self, model: str, version: str, client: str) -> ClientAccount:
        if client not in self._clients and len(self._clients) >= self._limit:
            client = OTHERS
        self._clients.add(client)
        key = (model, version, client)
        return self._accounts.setdefault(key, ClientAccount(model, version, client))

    def all(self) -> list[ClientAccount]:
        """Returns all accounts that were opened so far."""
        return list(self._accounts.values())

    def outcomes_of(self, model: str, version: str) -> dict[tuple[str, str], int]:
        """Returns how often requests for a version of a model ended with each (outcome, reason)."""
        found: dict[tuple[str, str], int] = {}
        for account in self._accounts.values():
            if (account.model, account.version) == (model, version):
                for key, count in account.tally.outcomes().items():
                    found[key] = found.get(key, 0) + count
        return found

    def collect(self) -> Iterable[Family]:
        """Yields the metrics of all accounts.

        They are two counters, and a gauge of the requests in flight.
        """
        submitted, outcomes, pending = [], [], []
        for account in self.all():
            labels = (
                ("client", account.client),
                ("model", account.model),
                ("version", account.version),
            )
            found = account.tally.outcomes()
            calls = account.tally.calls
            submitted.append(Sample("", labels, calls))
            pending.append(Sample("", labels, calls - sum(found.values())))
            for (outcome, reason), count in found.items():
                named = (*labels, ("outcome", outcome), ("reason", reason))
                outcomes.append(Sample("", named, count))
        for name, kind, text, samples in (
            ("requests_total", "counter", "Requests for inferences.", submitted),
            ("request_outcomes_total", "counter", "How requests ended, each once.", outcomes),
            ("requests_in_flight", "gauge", "Requests that have not ended.", pending),
        ):
            yield Family(f"nnasync_serving_{name}", kind, text, tuple(samples))

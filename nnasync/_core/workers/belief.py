"""A conclusion from what is looked at again and again: slow to come, slower after each mistake."""

from __future__ import annotations


class Belief:
    """Concludes from repeated observations whether something holds; at first it does not.

    It takes `proof` looks in a row to believe it, twice as many after each disappointment, but
    `most_proof` at most, and `doubts` in a row to doubt it.
    """

    __slots__ = ("_contradictions", "_doubts", "_least_proof", "_most_proof", "_proof", "holds")

    def __init__(self, *, proof: int, most_proof: int, doubts: int) -> None:
        self.holds = False
        self._proof = self._least_proof = proof
        self._most_proof = most_proof
        self._doubts = doubts
        self._contradictions = 0

    def note(self, *, speaks_for: bool) -> bool:
        """Takes an observation in; returns whether it changed the conclusion."""
        if speaks_for is self.holds:
            self._contradictions = 0
            if self.holds and self._proof > self._least_proof:
                self._proof -= 1
            return False
        self._contradictions += 1
        if self._contradictions < (self._doubts if self.holds else self._proof):
            return False
        if self.holds:
            self.disappoint()
        else:
            self.holds, self._contradictions = True, 0
        return True

    def forget(self) -> None:
        """Starts again from no observations, without counting that as a mistake."""
        self.holds, self._contradictions = False, 0

    def disappoint(self) -> None:
        """Notes that the conclusion was wrong.

        The next one needs twice the observations, to a limit.
        """
        self.holds, self._contradictions = False, 0
        self._proof = min(2 * self._proof, self._most_proof)

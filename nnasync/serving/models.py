"""The versions that are served now, by name; requests find theirs here.

A version takes the place of another one in one step: requests that have found the old one are
answered by it, and it is closed behind them.
"""

from __future__ import annotations

from collections.abc import Iterator

from nnasync.serving.problems import ServingError, not_found
from nnasync.serving.repeats import Repeats
from nnasync.serving.served_model import ServedModel


class Models:
    """The models that are served now; a request that names no version gets the highest."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[str, ServedModel]] = {}
        self._latest: dict[str, ServedModel] = {}
        self.repeats = Repeats()
        """What is known of requests for those that are served now."""

    def find(self, name: str, version: str = "") -> ServedModel:
        """Returns the version of a model that a request names.

        Raises ServingError where there is none.
        """
        if not version:
            model = self._latest.get(name)
            if model is None:
                raise unknown(name)
            return model
        found = self._versions.get(name, {})
        if version not in found:
            raise unknown(name, version if found else "")
        return found[version]

    def has(self, name: str, version: str = "") -> bool:
        """Returns whether this version of a model is served."""
        versions = self._versions.get(name, {})
        return version in versions if version else bool(versions)

    def versions(self, name: str) -> tuple[str, ...]:
        """Returns the versions of a model that are served, in ascending order."""
        return tuple(sorted(self._versions.get(name, {}), key=int))

    def put(self, model: ServedModel) -> ServedModel | None:
        """Serves a version from now on; returns the one whose place it takes, if there was one."""
        versions = self._versions.setdefault(model.name, {})
        replaced = versions.get(model.version)
        versions[model.version] = model
        self._choose(model.name)
        return replaced

    def take(self, name: str, version: str) -> ServedModel | None:
        """Stops serving a version; returns the one that was served, if there was one."""
        taken = self._versions.get(name, {}).pop(version, None)
        self._choose(name)
        return taken

    def _choose(self, name: str) -> None:
        self.repeats.clear()
        versions = self._versions.get(name)
        if versions:
            self._latest[name] = versions[max(versions, key=int)]
        else:
            self._versions.pop(name, None)
            self._latest.pop(name, None)

    def __iter__(self) -> Iterator[ServedModel]:
        """Iterates over all versions, by name and version."""
        for name in sorted(self._versions):
            for version in self.versions(name):
                yield self._versions[name][version]


def unknown(name: str, version: str = "") -> ServingError:
    """Returns the error for a model that is not served."""
    shown = name if len(name) <= 200 else f"{name[:200]}..."
    of_version = f" version {version[:20]}" if version else ""
    return not_found(f"Request for unknown model: '{shown}'{of_version} is not found")

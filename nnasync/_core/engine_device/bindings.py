"""A plan, and the requests of one prepared model that are bound to it, each while it lives.

A request is validated and bound when it is seen first. From then on it is found by its identity,
which is the first thing that every execution looks up.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nnasync._core.deferred import deferred
from nnasync._core.engine_device.binding import Binding, bound_to_pools, check_sizes
from nnasync._core.engine_device.plan_users import PlanUsers
from nnasync._core.validation import validate_request
from nnasync.engine.contract import Plan
from nnasync.errors import DeviceUnavailable, InvalidArgument, OutputInsufficientSize, because
from nnasync.hal import Model, OutputShape, Request

if TYPE_CHECKING:
    from nnasync._core.engine_device import tokens
    from nnasync._core.engine_device.buffers import Buffers
else:
    tokens = deferred("nnasync._core.engine_device.tokens")


class Bindings(dict[int, Binding]):
    """Keeps the bindings of one prepared model's requests, by the `id` of the request."""

    __slots__ = ("_buffers", "_model", "_owner", "_shapes", "_users", "plan")

    def __init__(
        self,
        owner: object,
        model: Model,
        plan: Plan,
        *,
        users: PlanUsers,
        shapes: Sequence[OutputShape],
        buffers: Callable[[], Buffers | None],
    ) -> None:
        """`owner` is the prepared model, for which buffers of the device have roles.

        `users` tell how errors name its executions, `shapes` are those of the outputs as far as the
        model states them, and `buffers` gives those of the device, if it has allocated any.
        """
        super().__init__()
        self.plan: Plan | None = plan
        """None once it is closed."""
        self._owner = weakref.ref(owner)
        self._model = model
        self._users = users
        self._shapes = shapes
        self._buffers = buffers

    def open_plan(self) -> Plan:
        """Returns the plan; raises DeviceUnavailable when it is closed."""
        if self.plan is None:
            raise because("closing", DeviceUnavailable(f"{self._users.name} is closed"))
        return self.plan

    def close(self) -> Plan | None:
        """Forgets all requests and closes; returns the plan, unless this was closed before."""
        plan, self.plan = self.plan, None
        self.clear()
        return plan

    def of(self, request: Request) -> Binding:
        """Returns the binding of a request; raises what `bind` raises."""
        return self.get(id(request)) or self.bind(request)

    def bind(self, request: Request) -> Binding:
        """Binds a new request, and keeps the binding for as long as the request lives.

        Raises InvalidArgument for one that is not legal, OutputInsufficientSize, GeneralFailure for
        memory that cannot be used, DeviceUnavailable when closed.
        """
        plan = self.open_plan()
        validate_request(self._model, request, unspecified_outputs=True)
        if any(argument.has_no_value for argument in request.outputs):
            raise InvalidArgument(f"{self._users.name}: an output cannot be omitted")
        if any(isinstance(pool, int) for pool in request.pools):
            binding = self._bound_by_tokens(plan, request)
        else:
            binding = bound_to_pools(self._users.name, plan, self._model.main, request)
        key = id(request)
        binding.reference = weakref.ref(request, lambda _: self.pop(key, None))
        self[key] = binding
        return binding

    def _bound_by_tokens(self, plan: Plan, request: Request) -> Binding:
        known = self._buffers()
        if known is None:
            raise InvalidArgument(
                f"{self._users.name}: a memory token of the request stands for no buffer: the "
                "device has allocated none"
            )
        main = self._model.main
        outputs = [main.operands[index] for index in main.output_indexes]
        owner = self._owner()
        binding = tokens.TokenBinding(owner, self._model, plan, request, known, self._shapes)
        try:
            check_sizes(self._users.name, binding.outputs, outputs)
        except OutputInsufficientSize:
            binding.fail(binding.take())
            raise
        return binding

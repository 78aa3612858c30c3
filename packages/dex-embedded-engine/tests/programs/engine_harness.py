"""A bench for behaviour tests: an engine on a clock that stands still, an AsyncWorker and an
AsyncClient, all in the test's process and connected over a Unix socket.

A test says what its Steps and RPCs do by handing functions to `Bench.on`; the Flow around them
says which Steps, RPCs and definitions there are.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeVar

import grpc
from dex import (
    AsyncClient,
    AsyncContext,
    AsyncWorker,
    BlobCacheConfig,
    ClientOptions,
    Context,
    Flow,
    FlowResult,
    FlowStatus,
    PullWorkerOptions,
    Registry,
    RPCResult,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    Wait,
    WorkerOptions,
    WorkerTarget,
    graceful_complete,
    open_blob_cache,
    rpc,
)
from dex.dexpb import dex_pb2 as pb
from dex.dexpb import dex_pb2_grpc
from google.protobuf.empty_pb2 import Empty

from dex_embedded_engine import EmbeddedEngine, EngineSettings, VirtualClock
from dex_embedded_engine.clock import TimerHandle

GUARD = 20.0
CACHE_BYTES = 64 * 1024 * 1024
# Workers send their signs of life by their own clock, so on a virtual clock they seem silent.
SETTINGS = EngineSettings(silent_worker_timeout=1e9)
# With it every event reads its Flow from the database, so nothing can only be in memory.
FORGETFUL = replace(SETTINGS, loaded_runs=0)
ValueT = TypeVar("ValueT")
Handler = Callable[[Any, Any], Any]


class _Alarm:
    def __init__(self, when: float, handle: TimerHandle) -> None:
        self.when = when
        self.is_set = True
        self._handle = handle

    def cancel(self) -> None:
        self.is_set = False
        self._handle.cancel()


class BenchClock(VirtualClock):
    """A virtual clock that starts at a whole second and tells when the engine wants to be woken."""

    def __init__(self) -> None:
        super().__init__(float(int(time.time())))
        self._alarms: list[_Alarm] = []
        self._changed = asyncio.Event()

    def call_at(self, when: float, callback: Callable[[], None]) -> TimerHandle:
        alarm = _Alarm(when, super().call_at(when, callback))
        self._alarms.append(alarm)
        self._changed.set()
        return alarm

    def alarms(self) -> list[float]:
        """Return in how many seconds the engine wants to be woken, ascending."""
        now = self.now()
        self._alarms = [alarm for alarm in self._alarms if alarm.is_set and alarm.when > now]
        return sorted(alarm.when - now for alarm in self._alarms)

    async def alarm(self, seconds: float, times: int = 1) -> None:
        """Wait until the engine wants to be woken in exactly `seconds`, for so many reasons."""
        async with asyncio.timeout(GUARD):
            while self.alarms().count(seconds) < times:
                self._changed.clear()
                await self._changed.wait()


class Script:
    """What the handlers of one test do, what they tell the test, and gates where they wait."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.handlers: dict[str, Handler] = {}
        self.options: dict[str, StepOptions] = {}
        self._gates: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Event()
        self._has_ended = False

    def note(self, line: str) -> None:
        """Tell the test something."""
        self.notes.append(line)
        self._changed.set()

    async def noted(self, line: str, times: int = 1) -> None:
        """Wait until a handler has noted `line` so often."""
        async with asyncio.timeout(GUARD):
            while self.notes.count(line) < times:
                self._changed.clear()
                await self._changed.wait()

    async def gate(self, name: str) -> None:
        """Wait until the test opens the gate, or ends."""
        if not self._has_ended:
            await self._gates.setdefault(name, asyncio.Event()).wait()

    def open(self, name: str) -> None:
        """Let everybody through the gate, now and later."""
        self._gates.setdefault(name, asyncio.Event()).set()

    def end(self) -> None:
        """Let everybody through every gate."""
        self._has_ended = True
        for gate in self._gates.values():
            gate.set()

    async def play(self, name: str, context: Any, input: Any, default: Any = None) -> Any:
        """Do what the test wants done under this name."""
        handler = self.handlers.get(name)
        if handler is None:
            return default
        result = handler(context, input)
        return await result if inspect.isawaitable(result) else result


class ScriptedStep(Step[str]):
    """A Step without wait_for; it completes the Flow gracefully with its input if not told else."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def get_step_options(self) -> StepOptions | None:
        return self.script.options.get(self.get_step_type())

    async def execute(self, context: AsyncContext, input: str) -> StepDecision:  # type: ignore[override]
        name = f"{self.get_step_type()}.execute"
        decision = await self.script.play(name, context, input, graceful_complete(input))
        assert isinstance(decision, StepDecision)
        return decision


class WaitingStep(ScriptedStep):
    """A Step with wait_for."""

    async def wait_for(self, context: AsyncContext, input: str) -> Wait:  # type: ignore[override]
        name = f"{self.get_step_type()}.wait_for"
        wait = await self.script.play(name, context, input, Wait.skip_immediately())
        assert isinstance(wait, Wait)
        return wait


class First(ScriptedStep):
    pass


class Second(ScriptedStep):
    pass


class Third(ScriptedStep):
    pass


class Hold(WaitingStep):
    pass


class Rest(WaitingStep):
    pass


class ScriptedFlow(Flow[str]):
    """A Flow of all the Steps above that starts with `starts_with`, and one RPC."""

    starts_with: ClassVar[type[ScriptedStep]] = First
    steps: ClassVar[tuple[type[ScriptedStep], ...]] = (First, Second, Third, Hold, Rest)

    def __init__(self, script: Script) -> None:
        self.script = script

    def get_steps(self) -> StepList[str]:
        others = [step(self.script) for step in self.steps if step is not self.starts_with]
        return StepList.start_step(self.starts_with(self.script)).other_steps(*others)

    @rpc
    async def ask(self, context: Context, input: str) -> RPCResult[str]:
        return await self.answer("ask", context, input)

    async def answer(self, name: str, context: Context, input: str) -> RPCResult[str]:
        """Do what the test wants done by this RPC; it returns its input if not told else."""
        result = await self.script.play(name, context, input, RPCResult(input))
        assert isinstance(result, RPCResult)
        return result


async def guard(work: Awaitable[ValueT]) -> ValueT:
    """Wait for `work`, but not for ever."""
    async with asyncio.timeout(GUARD):
        return await work


class RunningWorker:
    """An AsyncWorker that serves some Flows until it is stopped."""

    def __init__(self, worker: AsyncWorker, serving: asyncio.Task[None]) -> None:
        self.worker = worker
        self._serving = serving

    async def stop(self) -> None:
        """Stop the Worker and wait until it has ended."""
        await guard(self.worker.stop())
        await guard(self._serving)


class Bench:
    """Everything one test needs, as an async context manager.

    Args:
        folder: a folder of the test's own.
        flows: the Flow classes; `flow` is the instance of the first.
        settings: of the engine.
        has_worker: whether a Worker is started on entering.
        tasks: how many handlers a Worker runs at once.
    """

    def __init__(
        self,
        folder: Path,
        *flows: type[ScriptedFlow],
        settings: EngineSettings = SETTINGS,
        has_worker: bool = True,
        tasks: int = 8,
    ) -> None:
        self.folder = folder
        self.script = Script()
        self.flows: tuple[Any, ...] = tuple(flow(self.script) for flow in flows)
        self.flow: Any = self.flows[0]
        self.clock = BenchClock()
        self.workers: list[RunningWorker] = []
        self.client: AsyncClient
        self.service: Any
        self._settings = settings
        self._has_worker = has_worker
        self._tasks = tasks
        self._stack = AsyncExitStack()
        self._engine: AsyncExitStack | None = None
        self._caches = 0
        self.registry = self.make_registry(*self.flows)

    @property
    def address(self) -> str:
        """Where the engine listens, also after a restart."""
        return f"unix:{self.folder / 'socket'}"

    @property
    def data_dir(self) -> Path:
        """The engine's data directory."""
        return self.folder / "data"

    def files(self) -> dict[str, bytes]:
        """Return what is on the disk now, by file name."""
        return {file.name: file.read_bytes() for file in self.data_dir.iterdir()}

    def on(
        self,
        step: type[ScriptedStep],
        execute: Handler | None = None,
        *,
        wait_for: Handler | None = None,
        options: StepOptions | None = None,
    ) -> None:
        """Say what a Step does."""
        if execute is not None:
            self.script.handlers[f"{step.__name__}.execute"] = execute
        if wait_for is not None:
            self.script.handlers[f"{step.__name__}.wait_for"] = wait_for
        if options is not None:
            self.script.options[step.__name__] = options

    def on_rpc(self, name: str, handler: Handler) -> None:
        """Say what an RPC does, or ``handle_timeout``."""
        self.script.handlers[name] = handler

    async def start(
        self,
        flow_id: str = "flow",
        input: str | None = "",
        options: StartFlowOptions | None = None,
        *,
        flow: Any = None,
    ) -> str:
        """Start a Flow and return its run id."""
        instance = self.flow if flow is None else flow
        return await guard(
            self.client.start_flow(instance, flow_id, input, options or StartFlowOptions())
        )

    async def result(self, flow_id: str = "flow") -> FlowResult:
        """Wait until the Flow has closed."""
        return await guard(self.client.wait_for_flow(flow_id))

    async def output(self, kind: type[ValueT], flow_id: str = "flow") -> ValueT:
        """Wait until the Flow has completed and return its only output."""
        result = await self.result(flow_id)
        assert result.status is FlowStatus.COMPLETED, (result.status, result.error_message)
        return result.single_output(kind)

    async def call(self, name: str, *input: object, flow_id: str = "flow", **options: Any) -> Any:
        """Call an RPC of `flow`."""
        method = getattr(self.flow, name)
        return await guard(self.client.invoke_rpc(method, flow_id, *input, **options))

    async def state(self, flow_id: str = "flow") -> pb.GetFlowStateResponse:
        """Return everything the latest run of the Flow holds."""
        request = pb.GetFlowStateRequest(flow_id=flow_id)
        answer = await guard(self.service.GetFlowState(request))
        assert isinstance(answer, pb.GetFlowStateResponse)
        return answer

    async def history(self, flow_id: str = "flow") -> list[pb.FlowHistoryEvent]:
        """Return the whole journal of the latest run."""
        request = pb.GetHistoryEventsRequest(flow_id=flow_id)
        events: list[pb.FlowHistoryEvent] = []
        while True:
            answer = await guard(self.service.GetHistoryEvents(request))
            events.extend(answer.events)
            if not answer.next_page_token:
                return events
            request.next_page_token = answer.next_page_token

    async def reach(
        self, holds: Callable[[pb.GetFlowStateResponse], bool], flow_id: str = "flow"
    ) -> pb.GetFlowStateResponse:
        """Ask for the Flow's state until it fulfils a condition."""
        async with asyncio.timeout(GUARD):
            while not holds(state := await self.state(flow_id)):
                pass
            return state

    async def step(
        self,
        step_id: str,
        holds: Callable[[pb.ActiveStepExecutionState], bool] = bool,
        flow_id: str = "flow",
    ) -> pb.ActiveStepExecutionState:
        """Ask until the Step execution exists and fulfils a condition."""
        found: list[pb.ActiveStepExecutionState] = []

        def look(state: pb.GetFlowStateResponse) -> bool:
            found[:] = [
                each
                for each in state.active_step_executions
                if each.step_execution_id == step_id and holds(each)
            ]
            return bool(found)

        await self.reach(look, flow_id)
        return found[0]

    async def waiting(self, step_id: str, flow_id: str = "flow") -> pb.ActiveStepExecutionState:
        """Wait until the Step execution waits for its conditions."""
        return await self.step(
            step_id, lambda each: each.phase == pb.ACTIVE_STEP_PHASE_WAITING, flow_id
        )

    async def failed(
        self, step_id: str, attempt: int = 1, flow_id: str = "flow"
    ) -> pb.StepMethodFailure:
        """Wait until that attempt of the Step execution has failed and return why."""
        found = await self.step(
            step_id, lambda each: each.last_failure_info.attempt == attempt, flow_id
        )
        return found.last_failure_info

    async def retried(self, step_id: str, attempt: int, pause: float, flow_id: str = "flow") -> Any:
        """Wait for the failure of an attempt, check the pause after it, and let it pass."""
        failure = await self.failed(step_id, attempt, flow_id)
        await self.clock.alarm(pause)
        self.clock.advance(pause)
        return failure

    async def restart(self) -> None:
        """Stop the engine in order and start another one on the same directory and socket."""
        await self.stop_engine()
        await self.start_engine()

    async def stop_engine(self) -> None:
        """Disconnect the Client and stop the engine in order; Workers stay."""
        stack, self._engine = self._engine, None
        if stack is not None:
            await guard(stack.aclose())

    async def start_engine(self) -> None:
        """Start an engine and connect a Client to it."""
        self._engine = AsyncExitStack()
        await self._engine.enter_async_context(
            EmbeddedEngine(
                self.data_dir, address=self.address, settings=self._settings, clock=self.clock
            )
        )
        channel = await self._engine.enter_async_context(grpc.aio.insecure_channel(self.address))
        self.service = dex_pb2_grpc.FlowServiceStub(channel)
        # A Worker that tried to connect while there was no engine shares its pause with us.
        await guard(self.service.HealthCheck(Empty(), wait_for_ready=True))
        self.client = self.make_client()
        self._engine.push_async_callback(self.client.close)

    def make_client(self, registry: Any = None, address: str = "") -> AsyncClient:
        """Make another Client; whoever calls this closes it."""
        options = ClientOptions(
            server_address=address or self.address, worker_target=WorkerTarget(pull=True)
        )
        return AsyncClient(registry or self.registry, self.make_cache(), options)

    def make_cache(self) -> Any:
        """Open an empty blob cache."""
        self._caches += 1
        cache = open_blob_cache(BlobCacheConfig(str(self.folder / f"c{self._caches}"), CACHE_BYTES))
        self._stack.callback(cache.close)
        return cache

    def make_registry(self, *flows: ScriptedFlow) -> Any:
        """Register Flow instances."""
        return Registry(flows, allow_async_handlers=True)

    async def add_worker(self, registry: Any = None, **options: Any) -> RunningWorker:
        """Start another Worker and wait until all its queues are registered."""
        options.setdefault("max_concurrent_tasks", self._tasks)
        pull = PullWorkerOptions(**options)
        worker = AsyncWorker(
            registry or self.registry,
            self.make_cache(),
            WorkerOptions(server_address=self.address, pull=pull),
        )
        serving = asyncio.create_task(worker.start())
        try:
            await worker.wait_pull_registered(GUARD)
        except BaseException:
            await worker.close()
            await asyncio.gather(serving, return_exceptions=True)
            raise
        self.workers.append(RunningWorker(worker, serving))
        return self.workers[-1]

    async def __aenter__(self) -> Bench:
        await self.start_engine()
        if self._has_worker:
            await self.add_worker()
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.script.end()
        for worker in self.workers:
            await worker.worker.close()
        await self.stop_engine()
        await self._stack.aclose()

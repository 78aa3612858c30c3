"""Owns every exception this package raises.

Two families below one root: `AgentUsageError` is the caller's mistake, `AgentRunError` is a failure
while a session runs. What a Step raises to the engine is an `AgentRunError` with a fixed text: the
SDK sends a Step's whole exception chain to the engine in clear.
"""

from __future__ import annotations


class AgentError(Exception):
    """Root of every exception raised by `dex_agents`."""


class AgentUsageError(AgentError):
    """The caller asked for something that cannot be done."""


class EmptyMessageError(AgentUsageError):
    """A user message has no content."""

    def __init__(self) -> None:
        super().__init__("the message is empty; send text, or a list with content blocks")


class SessionNotFoundError(AgentUsageError):
    """There is no session with this id, or it is closed."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} does not exist or is closed; start it with start_session"
        )
        self.session_id = session_id


class SessionAlreadyStartedError(AgentUsageError):
    """A session with this id was started before, by another request."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} has been started; send to it with send_user_message, or "
            f"choose another id"
        )
        self.session_id = session_id


class InterruptNotFoundError(AgentUsageError):
    """The session has no interrupt with this id."""

    def __init__(self, session_id: str, interrupt_id: str) -> None:
        super().__init__(
            f"session {session_id!r} has no interrupt {interrupt_id!r}; get_agent_snapshot lists "
            f"the pending ones"
        )
        self.session_id = session_id
        self.interrupt_id = interrupt_id


class InterruptAlreadyResolvedError(AgentUsageError):
    """The interrupt was answered before, with another answer, or its turn is over."""

    def __init__(self, session_id: str, interrupt_id: str) -> None:
        super().__init__(
            f"interrupt {interrupt_id!r} of session {session_id!r} was answered otherwise before; "
            f"its answer stands"
        )
        self.session_id = session_id
        self.interrupt_id = interrupt_id


class MessageRefusedError(AgentUsageError):
    """The agent cannot take this message."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the agent cannot take the message: {reason}")


class InputTooLargeError(AgentUsageError):
    """Something that is to be stored is too large."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"{what} takes {size} bytes and at most {limit} can be stored; keep large data "
            f"elsewhere and send its address"
        )


class InvalidArgumentsError(AgentUsageError):
    """Arguments for a tool do not match its schema.

    A runner raises it for a call; the call then counts as failed, since its body was not entered.
    """


class AgentRunError(AgentError):
    """A session could not go on as planned."""


class ServerUnreachableError(AgentRunError):
    """Nothing answers at the server's address."""

    def __init__(self, address: str, seconds: float) -> None:
        super().__init__(
            f"no Dex server answered at {address!r} within {seconds:g} seconds; start one there, "
            f"for example: dex-embedded-engine serve --data-dir .dex --address {address}"
        )
        self.address = address


class ToolCallFailedError(AgentRunError):
    """A tool reports that it failed, and that nothing of it happened.

    A runner raises it for a call; the call then counts as failed, whatever its effect.
    """


class ModelCallError(AgentRunError):
    """A model call failed and will be repeated; its text is fixed, the reason is in the session."""

    def __init__(self) -> None:
        super().__init__("the model call failed; the session records why")


class ToolCallError(AgentRunError):
    """A tool's body failed and may be repeated; its text is fixed, the reason is in the session."""

    def __init__(self) -> None:
        super().__init__("the tool call failed; the session records why")


class WorkerUnavailableError(AgentRunError):
    """No Worker took a request, or the one that did was lost."""

    def __init__(self, flow_type: str, seconds: float) -> None:
        super().__init__(
            f"no Worker answered for flow type {flow_type!r} within {seconds:g} seconds; start one "
            f"with open_agent_host"
        )
        self.flow_type = flow_type


class NoAgentError(AgentRunError):
    """A process without the agent was given its work."""

    def __init__(self) -> None:
        super().__init__("this process has no agent; host the flow that was built with one")


class TurnLimitError(AgentRunError):
    """A turn is over a limit. Repeating the model call does not help, so it fails at once."""


class TurnTooManyCallsError(TurnLimitError):
    """A turn makes more tool calls than one turn may."""

    def __init__(self, count: int, limit: int) -> None:
        super().__init__(f"the turn would make {count} tool calls and at most {limit} are allowed")


class TurnTooLargeError(TurnLimitError):
    """A turn adds more than can be stored at once."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what} takes {size} bytes and at most {limit} can be stored")


class StoredRecordError(AgentRunError):
    """Stored data cannot be read: another format, another place, or damaged."""


class HistoryUnavailableError(AgentRunError):
    """A long history is not in this Worker's cache, and no Client is bound to read it."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"the history of session {session_id!r} is too long to travel with the Step, and no "
            f"Client is bound; use open_agent_host, or flow.bind_client(client)"
        )

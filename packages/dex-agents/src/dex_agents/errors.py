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


class StoredRecordError(AgentRunError):
    """Stored data cannot be read: another format, another place, or damaged."""


class HistoryUnavailableError(AgentRunError):
    """A long history is not in this Worker's cache, and no Client is bound to read it."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"the history of session {session_id!r} is too long to travel with the Step, and no "
            f"Client is bound; use open_agent_host, or flow.bind_client(client)"
        )

"""Durable agent sessions on Dex: one Flow per conversation, one Step per model and tool call."""

from dex_agents.errors import (
    AgentError,
    AgentRunError,
    AgentUsageError,
    EmptyMessageError,
    InputTooLargeError,
    InterruptAlreadyResolvedError,
    InterruptNotFoundError,
    InvalidArgumentsError,
    MessageRefusedError,
    ServerUnreachableError,
    SessionAlreadyStartedError,
    SessionNotFoundError,
    StoredRecordError,
    ToolCallFailedError,
    WorkerUnavailableError,
)
from dex_agents.events import AgentEvent, AgentEventType
from dex_agents.host import AgentHost, open_agent_host, open_session_client
from dex_agents.messages import AgentMessage, MessageDraft, MessageRole
from dex_agents.runner_contract import (
    AgentFrameworkRunner,
    FrameworkRunState,
    ModelCallEmitter,
    RunModelRequest,
    RunModelResult,
    ToolCallsRequested,
    TurnFinished,
)
from dex_agents.session_client import AgentSessionClient, MessageReceipt, SessionEvent
from dex_agents.session_flow import AgentSessionFlow, session_client_flow
from dex_agents.session_header import SessionStatus, TurnState
from dex_agents.settings import SessionSettings
from dex_agents.snapshot import AgentSnapshot, PendingInterrupt, QueuedMessage, TurnResult
from dex_agents.stored_record import StoredRecord
from dex_agents.tool_calls import (
    DeferredToolCall,
    Resolution,
    ToolCallContext,
    ToolCallRecord,
    ToolCallStatus,
)
from dex_agents.usage import TokenUsage
from dex_agents_tool_policy import ToolEffect, ToolPolicy

__all__ = [
    "AgentError",
    "AgentEvent",
    "AgentEventType",
    "AgentFrameworkRunner",
    "AgentHost",
    "AgentMessage",
    "AgentRunError",
    "AgentSessionClient",
    "AgentSessionFlow",
    "AgentSnapshot",
    "AgentUsageError",
    "DeferredToolCall",
    "EmptyMessageError",
    "FrameworkRunState",
    "InputTooLargeError",
    "InterruptAlreadyResolvedError",
    "InterruptNotFoundError",
    "InvalidArgumentsError",
    "MessageDraft",
    "MessageReceipt",
    "MessageRefusedError",
    "MessageRole",
    "ModelCallEmitter",
    "PendingInterrupt",
    "QueuedMessage",
    "Resolution",
    "RunModelRequest",
    "RunModelResult",
    "ServerUnreachableError",
    "SessionAlreadyStartedError",
    "SessionEvent",
    "SessionNotFoundError",
    "SessionSettings",
    "SessionStatus",
    "StoredRecord",
    "StoredRecordError",
    "TokenUsage",
    "ToolCallContext",
    "ToolCallFailedError",
    "ToolCallRecord",
    "ToolCallStatus",
    "ToolCallsRequested",
    "ToolEffect",
    "ToolPolicy",
    "TurnFinished",
    "TurnResult",
    "TurnState",
    "WorkerUnavailableError",
    "open_agent_host",
    "open_session_client",
    "session_client_flow",
]

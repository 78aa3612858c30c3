"""What a tool does to the world, and what a durable session may therefore do with its calls.

`ToolPolicy` says it for one tool, `ToolPolicyResolver` finds the policy of any call. The package
runs no tool and knows no framework: it takes names and metadata, never tool objects.
"""

from dex_agents_tool_policy.effects import ToolEffect
from dex_agents_tool_policy.errors import ToolPolicyError, ToolPolicyUsageError
from dex_agents_tool_policy.mcp_annotations import tool_effect_from_annotations
from dex_agents_tool_policy.policy import ToolPolicy
from dex_agents_tool_policy.resolver import ToolPolicyResolver

__all__ = [
    "ToolEffect",
    "ToolPolicy",
    "ToolPolicyError",
    "ToolPolicyResolver",
    "ToolPolicyUsageError",
    "tool_effect_from_annotations",
]

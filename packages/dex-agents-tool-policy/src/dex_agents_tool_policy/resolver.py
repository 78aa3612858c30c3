"""Owns the order in which a call's policy is looked up. Knows no tool objects and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dex_agents_tool_policy.effects import ToolEffect
from dex_agents_tool_policy.errors import InvalidPolicyError, InvalidToolNameError
from dex_agents_tool_policy.mcp_annotations import tool_effect_from_annotations
from dex_agents_tool_policy.policy import ToolPolicy, check_effect


class ToolPolicyResolver:
    """Finds the policy of any tool call: the named one, the tool's MCP annotations, the default.

    Args:
        policies: what the application says, by tool name; copied.
        default_tool_effect: the effect of a tool about which nobody says anything.

    Raises:
        ToolPolicyUsageError: a name, a policy or the default has a wrong type or value.
    """

    def __init__(
        self,
        policies: Mapping[str, ToolPolicy],
        default_tool_effect: ToolEffect = ToolEffect.UNCLASSIFIED,
    ) -> None:
        if not isinstance(policies, Mapping):
            raise InvalidPolicyError(None, policies)
        for name, policy in policies.items():
            if not _is_visible(name):
                raise InvalidToolNameError(name)
            if not isinstance(policy, ToolPolicy):
                raise InvalidPolicyError(name, policy)
        check_effect("default_tool_effect", default_tool_effect)
        self._policies = MappingProxyType(dict(policies))
        self._default = ToolPolicy(default_tool_effect)

    @property
    def policies(self) -> Mapping[str, ToolPolicy]:
        """The named policies, read-only; a tool in it has been named by the application."""
        return self._policies

    @property
    def default_tool_effect(self) -> ToolEffect:
        """The effect of a tool about which nobody says anything."""
        return self._default.effect

    def resolve(self, tool_name: str, metadata: Mapping[str, object] | None = None) -> ToolPolicy:
        """Return the policy of a call.

        Args:
            tool_name: the name in the call. Any string: models make names up.
            metadata: the tool's metadata; not looked at when the application named a policy.

        Raises:
            InvalidToolNameError: `tool_name` is not a string.
            InvalidMetadataError: `metadata` is looked at and is neither a mapping nor None.
        """
        if not isinstance(tool_name, str):
            raise InvalidToolNameError(tool_name)
        named = self._policies.get(tool_name)
        if named is not None:
            return named
        effect = tool_effect_from_annotations(metadata)
        return self._default if effect is None else ToolPolicy(effect)


def _is_visible(name: object) -> bool:
    return isinstance(name, str) and bool(name.strip())

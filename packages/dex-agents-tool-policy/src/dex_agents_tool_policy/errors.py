"""Owns every exception this package raises.

Below the root there is one family, the caller's mistake: nothing here runs, so nothing fails later.
None of them is a ValueError or TypeError, which `dex-python-sdk` takes for a handler's bad result.
"""

from __future__ import annotations

from datetime import timedelta

from dex_agents_tool_policy.effects import ToolEffect


class ToolPolicyError(Exception):
    """Root of every exception raised by `dex_agents_tool_policy`."""


class ToolPolicyUsageError(ToolPolicyError):
    """An argument has a wrong type or value; raised where it is passed, before any tool runs."""


class InvalidEffectError(ToolPolicyUsageError):
    """`ToolPolicy` or `ToolPolicyResolver` got something that is not a `ToolEffect`.

    Attributes:
        argument: the name of the argument, for example ``"effect"``.
    """

    def __init__(self, argument: str, value: object) -> None:
        members = {str(effect): f"ToolEffect.{effect.name}" for effect in ToolEffect}
        # A member compares equal to its value, so a plain string is the likely slip.
        meant = members.get(value.casefold()) if isinstance(value, str) else None
        remedy = f"write `{meant}`" if meant else "pass one of " + ", ".join(members.values())
        super().__init__(f"{argument} is {value!r}, which is not a `ToolEffect`; {remedy}")
        self.argument = argument


class InvalidDurationError(ToolPolicyUsageError):
    """`ToolPolicy` got a timeout that is no timedelta, or not a positive number of whole seconds.

    Attributes:
        argument: the name of the argument, for example ``"timeout"``.
    """

    def __init__(self, argument: str, value: object, longest: timedelta) -> None:
        if isinstance(value, timedelta):
            problem = f"from one second to {longest.days} days in whole seconds"
        else:
            problem = "a `datetime.timedelta` or None"
        super().__init__(
            f"{argument} is {value!r}, it must be {problem}; "
            f"write for example `{argument}=timedelta(seconds=30)`"
        )
        self.argument = argument


class InvalidApprovalError(ToolPolicyUsageError):
    """`ToolPolicy` got approval settings that are no bool, or that contradict each other."""

    def __init__(self, requires_approval: object, approval_timeout: timedelta | None) -> None:
        if isinstance(requires_approval, bool):
            text = (
                f"approval_timeout is {approval_timeout!r}, but no call waits for an approval; "
                "add `requires_approval=True` or leave it out"
            )
        else:
            text = f"requires_approval is {requires_approval!r}; pass True or False"
        super().__init__(text)


class InvalidPolicyError(ToolPolicyUsageError):
    """`ToolPolicyResolver` got policies that are no mapping, or a value that is no `ToolPolicy`.

    Attributes:
        tool_name: whose policy it is; None for the mapping as a whole.
    """

    def __init__(self, tool_name: str | None, value: object) -> None:
        if tool_name is None:
            text = f"policies is {value!r}; pass a mapping of tool names to `ToolPolicy` objects"
        else:
            meant = f"ToolEffect.{value.name}" if isinstance(value, ToolEffect) else "ToolEffect..."
            text = f"the policy of {tool_name!r} is {value!r}; write `ToolPolicy({meant})`"
        super().__init__(text)
        self.tool_name = tool_name


class InvalidToolNameError(ToolPolicyUsageError):
    """A tool's name is not a string, or a policy is given to a name without a visible character."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"{value!r} is no name of a tool; pass the name as a string, as the model is given it"
        )


class InvalidMetadataError(ToolPolicyUsageError):
    """A tool's metadata is neither a mapping nor None."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"metadata is of type {type(value).__name__!r}; "
            "pass the tool's `metadata` mapping, or None"
        )

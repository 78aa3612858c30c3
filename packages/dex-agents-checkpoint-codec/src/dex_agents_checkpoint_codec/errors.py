"""Owns every exception this package raises.

Three families below the root: the caller's mistake, stored text that cannot be read, and a
serializer that fails. No message holds a value, and none keeps the exception it was made from:
`dex-python-sdk` sends a Step's whole exception chain in clear.
"""

from __future__ import annotations

from dataclasses import dataclass

_LONGEST_QUOTE = 80


def quoted(text: str) -> str:
    """Return `text` as a message shows it: quoted, and cut when it is long."""
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "...")


class CheckpointCodecError(Exception):
    """Root of every exception raised by `dex_agents_checkpoint_codec`."""


class RunStateUsageError(CheckpointCodecError):
    """The caller's mistake: a value that cannot be written, or an argument of a wrong type.

    Raised by the constructors of the values, `encode_run_state`, `decode_run_state` and
    `check_serializer`, before the serializer is called.

    Attributes:
        problem: what is wrong, without what to do about it.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem


class RunStateFormatError(CheckpointCodecError):
    """Stored text cannot be read: it is no run state, an unknown version, or it was changed.

    Raised by `decode_run_state` before the serializer is called.

    Attributes:
        problem: what is wrong, without what to do about it.
    """

    def __init__(
        self,
        problem: str,
        remedy: str = "restore the text that `encode_run_state` returned, or cancel the turn",
    ) -> None:
        super().__init__(f"the run state cannot be read: {problem}; {remedy}")
        self.problem = problem


class UnknownFormatError(RunStateFormatError):
    """The text names another format than the ones this release reads.

    Attributes:
        found: the format that the text names.
    """

    def __init__(self, found: str, family: str, known: dict[str, str], release: str) -> None:
        if found.startswith(family):
            remedy = (
                f"a release newer than {release} wrote it: install that one or a later one of "
                "`dex-agents-checkpoint-codec` on every Worker"
            )
        else:
            remedy = f"formats of run states begin with {family!r}: pass a run state's text"
        readable = ", ".join(f"{name!r} (releases since {since})" for name, since in known.items())
        super().__init__(
            f"it has the format {quoted(found)}, and release {release} of "
            f"`dex-agents-checkpoint-codec` reads {readable}",
            remedy,
        )
        self.found = found


class DamagedRunStateError(RunStateFormatError):
    """The text's SHA-256 is not the one it carries: it was changed after it had been written."""

    def __init__(self) -> None:
        super().__init__("its content does not have the SHA-256 that stands in it")


class RunStateSerializerError(CheckpointCodecError):
    """The serializer fails, or is not the one that wrote the run state."""


class SerializerNameError(RunStateSerializerError):
    """Raised by `decode_run_state`: the run state was written with a serializer of another name.

    Attributes:
        written: the name in the run state.
        given: the name that the caller passed.
    """

    def __init__(self, written: str, given: str) -> None:
        super().__init__(
            f"the run state was written with the serializer {quoted(written)} and cannot be read "
            f"with {quoted(given)}; every Worker must use the same serializer"
        )
        self.written = written
        self.given = given


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """Where in a run state a value stands.

    Attributes:
        namespace: the checkpoint namespace; the root graph's is empty.
        what: which value of the namespace, for example ``"message 2"``, counted from 0.
        channel: the channel it belongs to; None for the checkpoint and its metadata.
    """

    namespace: str
    what: str
    channel: str | None = None

    def __str__(self) -> str:
        channel = "" if self.channel is None else f" of channel {quoted(self.channel)}"
        return f"{self.what}{channel} in namespace {quoted(self.namespace)}"


class SerializerFailedError(RunStateSerializerError):
    """A method of the serializer raised, or returned what no serializer may return.

    Raised by `encode_run_state` and `decode_run_state`. What the serializer raised is left out on
    purpose, since its text may hold the value; `conformance.check_serializer` shows it.

    Attributes:
        method: ``"dumps_typed"`` or ``"loads_typed"``.
        place: where the value stands.
    """

    def __init__(self, method: str, place: ValuePlace, problem: str) -> None:
        super().__init__(
            f"`{method}` of the serializer {problem} for {place}; "
            "try such a value with `dex_agents_checkpoint_codec.conformance.check_serializer`"
        )
        self.method = method
        self.place = place

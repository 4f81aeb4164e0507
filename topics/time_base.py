"""The shared time origin: converts a monotonic clock to domain time.

Processes read `time.monotonic_ns()`, one clock for all processes of a machine, and pass the reading
as an argument. At speed 10, a domain second lasts 0.1 real seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from topics.checks import InvalidValue, number, time_ms


@dataclass(frozen=True, slots=True)
class TimeBase:
    """A domain clock: it shows `origin_ms` since the epoch at the monotonic reading
    `origin_mono_ns`.

    speed: domain seconds per real second, in [0.01, 1000].
    """

    speed: float = 1.0
    origin_ms: int = 0
    origin_mono_ns: int = 0

    def __post_init__(self) -> None:
        number("speed", self.speed, 0.01, 1000.0)
        time_ms("origin_ms", self.origin_ms)

    @classmethod
    def parse(cls, text: str) -> TimeBase:
        """The time base in `text`, the output of `format`. Raises InvalidValue if the text is
        invalid."""
        parts = text.split(",")
        try:
            speed, origin_ms, origin_mono_ns = float(parts[0]), int(parts[1]), int(parts[2])
        except (ValueError, IndexError):
            raise InvalidValue("time base", text, "SPEED,ORIGIN_MS,ORIGIN_MONO_NS") from None
        return cls(speed, origin_ms, origin_mono_ns)

    def format(self) -> str:
        """The time base as one word for a command line, which `parse` reads."""
        return f"{self.speed!r},{self.origin_ms},{self.origin_mono_ns}"

    def now_ms(self, mono_ns: int) -> int:
        """Domain time in ms since the epoch at the monotonic reading `mono_ns`."""
        return self.origin_ms + int((mono_ns - self.origin_mono_ns) * self.speed) // 1_000_000

    def real_s(self, domain_s: float) -> float:
        """`domain_s` domain seconds in real seconds."""
        return domain_s / self.speed

    def mono_ns_at(self, domain_ms: float) -> int:
        """The monotonic reading at which domain time is `domain_ms`."""
        return self.origin_mono_ns + int((domain_ms - self.origin_ms) * 1e6 / self.speed)

"""Kafka connection settings (TLS and SASL), used by every client of every process.

The settings come from environment variables, because child processes inherit them and they do not
appear in command lines. Passwords come from files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from topics.checks import InvalidValue, one_of

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_VARIABLE = "SHOAL_KAFKA_"


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """TLS and SASL settings.

    protocol: one of PROTOCOLS. ca_file, cert_file, key_file: PEM files; without ca_file, the
    system's certificate authorities are used. mechanism, username, password_file: for the SASL
    protocols.
    """

    protocol: str = "PLAINTEXT"
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    mechanism: str = "SCRAM-SHA-512"
    username: str = ""
    password_file: str = ""

    def __post_init__(self) -> None:
        one_of(f"{_VARIABLE}PROTOCOL", self.protocol, PROTOCOLS)
        one_of(f"{_VARIABLE}MECHANISM", self.mechanism, MECHANISMS)
        if self.sasl and not (self.username and self.password_file):
            named = f"{_VARIABLE}USERNAME and {_VARIABLE}PASSWORD_FILE"
            raise InvalidValue(f"{_VARIABLE}PROTOCOL", self.protocol, f"{named} with it")
        if bool(self.cert_file) != bool(self.key_file):
            named = f"{_VARIABLE}CERT_FILE and {_VARIABLE}KEY_FILE together"
            raise InvalidValue(f"{_VARIABLE}CERT_FILE", self.cert_file, named)

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def sasl(self) -> bool:
        """Whether clients log in."""
        return self.protocol.startswith("SASL")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> KafkaSecurity:
        """The settings in SHOAL_KAFKA_PROTOCOL, _CA_FILE, _CERT_FILE, _KEY_FILE, _MECHANISM,
        _USERNAME and _PASSWORD_FILE; plaintext if none is set. Raises InvalidValue, which names
        the variable, if one is invalid."""
        names = {field: _VARIABLE + field.upper() for field in cls.__dataclass_fields__}
        found = {field: environment[name] for field, name in names.items() if environment.get(name)}
        return cls(**found)

    def explain_failure(self, error: BaseException, waited_s: float) -> str:
        """Text that explains why a connection with these settings failed, and which settings to
        check.

        error: the exception of the connection, TLS or the Kafka client. Its type is recognised by
        name, because this module imports no client. waited_s: real seconds until a time-out.
        """
        kind = type(error).__name__
        message = str(error)
        protocol = f"{_VARIABLE}PROTOCOL is {self.protocol}"
        if kind == "SSLCertVerificationError":
            trusted = self.ca_file or "not set, so the system's authorities count"
            reason = getattr(error, "verify_message", message)
            return f"its certificate is not trusted ({reason}); {_VARIABLE}CA_FILE is {trusted}"
        if "SaslAuth" in kind or "AuthenticationFailed" in kind:
            return (
                f"it refuses the login of {self.username} by {self.mechanism}; see "
                f"{_VARIABLE}USERNAME, {_VARIABLE}PASSWORD_FILE and {_VARIABLE}MECHANISM"
            )
        if "SaslMechanism" in kind:
            return f"it does not know the mechanism {self.mechanism}; see {_VARIABLE}MECHANISM"
        if kind == "IllegalSaslState":
            return f"it takes no login on this port; {protocol}"
        if kind.startswith("SSL"):
            return f"TLS failed ({getattr(error, 'reason', '') or message}); {protocol}"
        if kind == "ConnectionRefusedError":
            return "connection refused"
        if kind in ("TimeoutError", "CancelledError", "RequestTimedOutError"):
            return f"no answer within {waited_s:g} s; {protocol}"
        if kind in ("KafkaConnectionError", "ConnectionResetError", "IncompleteReadError"):
            other = "another protocol" if self.tls and self.sasl else "TLS or a login"
            if self.tls and not self.cert_file:
                other += f", or a certificate ({_VARIABLE}CERT_FILE)"
            return f"it closed the connection; {protocol}: does the port demand {other}?"
        return getattr(error, "strerror", None) or message or kind

    def client_options(
        self, read: Callable[[str], str], ssl_context: Callable[..., Any]
    ) -> dict[str, Any]:
        """The settings as keyword arguments of aiokafka's clients.

        read: returns a file's text. ssl_context: function that makes a TLS context. Errors of these
        two functions, for example about an unreadable file, pass through.
        """
        found: dict[str, Any] = {"security_protocol": self.protocol}
        if self.tls:
            found["ssl_context"] = ssl_context(
                cafile=self.ca_file or None,
                certfile=self.cert_file or None,
                keyfile=self.key_file or None,
            )
        if self.sasl:
            found["sasl_mechanism"] = self.mechanism
            found["sasl_plain_username"] = self.username
            found["sasl_plain_password"] = read(self.password_file).strip()
        return found

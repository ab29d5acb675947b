"""What EC2's refusals mean for an order. Source: "Error codes for the Amazon EC2 API"."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from trainer_client.backends import BackendError
from workers.provider import NoCapacity

ERRORS = (BotoCoreError, ClientError, ResponseParserError)  # the last: somebody on the way answered, in HTML

# There is none, or not for this account: it may be had later, or elsewhere.
NONE_TO_BE_HAD = frozenset(
    {
        "InsufficientInstanceCapacity", "InsufficientCapacity", "InsufficientHostCapacity", "UnfulfillableCapacity",
        "MaxSpotInstanceCountExceeded", "SpotMaxPriceTooLow", "InstanceLimitExceeded", "VcpuLimitExceeded",
        "InsufficientFreeAddressesInSubnet",
    }
)  # fmt: skip
TOO_FAST = frozenset({"RequestLimitExceeded", "Throttling", "ThrottlingException", "EC2ThrottledException"})
# Said where repeating the same request may help though nothing has changed here.
PASSING = frozenset({"InternalError", "InternalFailure", "ServiceUnavailable", "Unavailable", "RequestExpired"})


def code_of(error: Exception) -> str:
    """EC2's word for it; empty where EC2 did not answer."""
    return str(error.response["Error"].get("Code", "")) if isinstance(error, ClientError) else ""


def told(error: Exception, what: str) -> BackendError:
    """The error in our words. A request for which no answer came may have been carried out."""
    code = code_of(error)
    if not isinstance(error, ClientError):
        return BackendError(f"EC2 does not answer ({what}): {type(error).__name__}: {error}")
    said = f"{code}: {error.response['Error'].get('Message', '')}".strip()[:300]
    if code in NONE_TO_BE_HAD:
        return NoCapacity(f"none to be had in {what}: {said}")
    if code in TOO_FAST:
        return NoCapacity(f"EC2 is asked too often ({what}): {said}")
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return BackendError(f"EC2 refuses ({what}): {said}", permanent=code not in PASSING and status < 500)

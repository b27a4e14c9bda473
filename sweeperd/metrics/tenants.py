"""The label of a tenant, bounded in number and in length."""

import hashlib
import threading

#: How many hex digits of a hash end the label of a name that is too long.
_HASH = 8
#: Stands for the tenants that have no label of their own.
OTHER_TENANTS = "_other"


class TenantLabels:
    """
    The label of a tenant. The first `limit` tenants have one each, and all further ones share `_other`, because each
    label is a series of its own. A name longer than `length` is cut, and ends with a hash of the whole name.
    """

    def __init__(self, limit: int, length: int) -> None:
        self._limit = limit
        self._length = length
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def label(self, tenant: str) -> str:
        """The label for this tenant."""
        if len(tenant) > self._length:
            digest = hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
            tenant = f"{tenant[: self._length - _HASH - 1]}~{digest}"
        with self._lock:
            if tenant not in self._known:
                if len(self._known) >= self._limit:
                    return OTHER_TENANTS
                self._known.add(tenant)
        return tenant

"""Builds the names of all keys from the prefix."""


class Keys:
    """Every key name, built from the prefix. No other module holds a key name."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix.encode()
        #: ZSET: bare reservation id -> expires_at, ms.
        self.reservation_index = self.prefix + b"reservation:ttl"
        #: The prefix of the name of a budget's HASH, before `<scope>:<unit>`.
        self.budget_stem = self.prefix + b"budget:"
        #: The prefix of the names of the ledger's records.
        self.idempotency_stem = self.prefix + b"idem:"
        #: STREAM: one entry for each expiry; the outbox.
        self.events = self.prefix + b"sweeperd:events"
        #: STREAM: deliveries that sweeperd gave up on.
        self.dead_letters = self.prefix + b"sweeperd:dead-letters"
        #: ZSET: bare id -> ms when the reservation was quarantined.
        self.quarantine = self.prefix + b"sweeperd:quarantine"
        #: HASH: endpoint name -> the state that all replicas share, JSON.
        self.endpoints = self.prefix + b"sweeperd:endpoints"
        #: HASH: consumer group -> its note, JSON: when the group was created and its position; for a replay, the span.
        self.groups = self.prefix + b"sweeperd:groups"
        #: HASH: endpoint with a `max_rate` -> when its token bucket will be full again, µs.
        self.pace = self.prefix + b"sweeperd:pace"
        #: HASH: endpoint@process -> that process's circuit, JSON; endpoint -> when an operator closed it, ms.
        self.circuits = self.prefix + b"sweeperd:circuits"
        #: HASH: daemon -> last heartbeat, whether the daemon sweeps, whether it delivers; JSON.
        self.processes = self.prefix + b"sweeperd:processes"
        #: HASH: the filters of each process that delivers, by endpoint, JSON; when it was last heard; their version.
        self.filters = self.prefix + b"sweeperd:filters"
        #: HASH: the last tick, its process, and the total number of expired entries.
        self.ticks = self.prefix + b"sweeperd:ticks"
        #: HASH: `last`: when the daemon's last walk ended and the counts, `report`: all findings; JSON.
        self.reconcile = self.prefix + b"sweeperd:reconcile"
        #: STREAM, bounded: what operators did.
        self.actions = self.prefix + b"sweeperd:actions"
        #: HASH: operators' action -> how many times it was done.
        self.action_counts = self.prefix + b"sweeperd:action-counts"
        #: HASH: tenant -> its expiries in this window, and the usual number.
        self.expiry_rates = self.prefix + b"sweeperd:rates"
        #: HASH: the oldest pending delivery of Cycles, since when it is the oldest, and since when events wait; ms.
        self.relay = self.prefix + b"sweeperd:relay"
        #: HASH: name of one of `[[kinds]]`, `:`, digest of its settings -> ms when one of its entries was seen alive.
        self.proofs = self.prefix + b"sweeperd:proofs"
        #: The keys of a Cycles installation under the same prefix.
        self.cycles = CyclesKeys(self.prefix)

    def reservation(self, reservation_id: bytes) -> bytes:
        """HASH: one reservation. The index holds the bare id, the name of the hash carries `res_`."""
        return self.prefix + b"reservation:res_" + reservation_id

    def budget(self, scope: bytes, unit: bytes) -> bytes:
        """HASH: one budget."""
        return self.budget_stem + scope + b":" + unit

    def tenant(self, tenant: bytes) -> bytes:
        """STRING: a tenant's record, JSON, written by the service that administers tenants."""
        return self.prefix + b"tenant:" + tenant

    def idempotency(self, tenant: bytes, operation: str, key: bytes) -> bytes:
        """STRING: the ledger's answer to this operation under this idempotency key."""
        # Tenants and keys may hold colons. The tenant's length keeps the names of all pairs distinct.
        return self.idempotency_stem + b"%b:%d:%b:%b" % (operation.encode(), len(tenant), tenant, key)

    def kind_index(self, name: str) -> bytes:
        """ZSET: id -> deadline, ms; the index of one of `[[kinds]]`."""
        return self.prefix + name.encode()

    def kind_entry(self, template: tuple[str, str], entry: bytes) -> bytes:
        """HASH or STRING: an entry of one of `[[kinds]]`. `template`: the text before and after the id."""
        before, after = template
        return self.prefix + before.encode() + entry + after.encode()

    def kind_ticks(self, kind: str) -> bytes:
        """HASH: like `ticks`, for one of `[[kinds]]`."""
        return self.ticks + b":" + kind.encode()

    def kind_protected(self, kind: str) -> bytes:
        """ZSET: id -> ms from which `unless` protects the entry; of one of `[[kinds]]`."""
        return self.prefix + b"sweeperd:protected:" + kind.encode()

    def kind_notes(self, kind: str) -> bytes:
        """
        HASH: id -> its deadline, a space, and the score that stands for it (empty in quarantine); of one of `[[kinds]]`
        whose deadline is the score of the index.
        """
        return self.prefix + b"sweeperd:deadlines:" + kind.encode()

    def kind_marks(self, kind: str) -> bytes:
        """
        HASH: id -> reason and cause of its quarantine, or `dismissed` and the ms; of one of `[[kinds]]` whose entries
        are not hashes.
        """
        return self.prefix + b"sweeperd:marks:" + kind.encode()

    def kind_quarantine(self, kind: str) -> bytes:
        """ZSET: id -> ms when the entry was quarantined; of one of `[[kinds]]`."""
        return self.quarantine + b":" + kind.encode()

    def attempts(self, endpoint: str) -> bytes:
        """STREAM, bounded: the last attempts to deliver to this endpoint."""
        return self.prefix + b"sweeperd:attempts:" + endpoint.encode()

    def lease(self, job: str) -> bytes:
        """STRING: the token of the process that holds the lease of this job."""
        return self.prefix + b"sweeperd:lease:" + job.encode()


#: How the ids of Cycles' webhook subscriptions begin.
SUBSCRIPTION = b"whsub_"


class CyclesKeys:
    """The keys read by the services of a Cycles installation: their events, subscriptions and deliveries."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        #: STRING: the token of the process that runs the expiry sweep of the installation.
        self.lease = self._prefix + b"cycles:maintenance:lease:reservation_expiry"
        #: ZSET: the same as `events` for all tenants.
        self.all_events = self.events(b"_all")
        #: SET: the ids of all subscriptions of the installation.
        self.all_subscriptions = self.subscriptions(b"_all")
        #: SET: the ids of all tenants of the installation.
        self.tenants = self._prefix + b"tenants"
        #: LIST: ids of pending deliveries; the dispatcher pops from the right.
        self.dispatch = self._prefix + b"dispatch:pending"
        #: STRING: the token of the dispatcher that takes and sends a delivery now.
        self.dispatch_lock = self._prefix + b"dispatch:ordering:lock"
        #: LISTS: deliveries that a dispatcher has taken and not finished; those that no dispatcher can read, JSON.
        self.dispatch_processing = self._prefix + b"dispatch:processing"
        self.dispatch_failed = self._prefix + b"dispatch:failed"
        #: STRING: which URLs the services accept for webhooks, JSON.
        self.webhook_security = self._prefix + b"config:webhook-security"

    def event(self, event_id: str) -> bytes:
        """STRING: one event, JSON."""
        return self._prefix + b"event:" + event_id.encode()

    def events(self, tenant: bytes) -> bytes:
        """ZSET: id of a tenant's event -> time of the event, ms."""
        return self._prefix + b"events:" + tenant

    def subscriptions(self, tenant: bytes) -> bytes:
        """SET: the ids of a tenant's webhook subscriptions."""
        return self._prefix + b"webhooks:" + tenant

    def subscription(self, subscription_id: bytes) -> bytes:
        """STRING: one webhook subscription, JSON."""
        return self._prefix + b"webhook:" + subscription_id

    def delivery(self, delivery_id: str) -> bytes:
        """STRING: one delivery, JSON."""
        return self._prefix + b"delivery:" + delivery_id.encode()

    def deliveries(self, subscription_id: str) -> bytes:
        """ZSET: id of a subscription's delivery -> when it was created, ms."""
        return self._prefix + b"deliveries:" + subscription_id.encode()

    def created_index(self, tenant: bytes) -> bytes:
        """ZSET: id of a tenant's reservation -> when it was created, ms. Sorted lists are read from it."""
        return self._prefix + b"reservation:idx:" + tenant + b":created_at_ms"

    def created_metadata(self, tenant: bytes) -> bytes:
        """HASH: whether that index is complete (`state` READY), and how many ids it has (`expected_count`)."""
        return self._prefix + b"reservation:idxmeta:" + tenant + b":created_at_ms"

    def idempotency(self, tenant: bytes, operation: bytes, key: bytes) -> bytes:
        """STRING: the service's record for this operation under this idempotency key."""
        return self._prefix + b"idem:%b:%b:%b" % (tenant, operation, key)

#!/bin/sh
# What cron.sh and systemd.sh share. They run as root on a fresh Debian 12 with python3-venv and redis-server, and read the
# clone below /root/sweeperd.
say() { echo "PROOF $1: $2"; }
state() { redis-cli HGET "reservation:res_$1" state; }
expired() { [ "$(state "$1")" = EXPIRED ]; }
reserve() { # ID...: overdue by a minute
  past=$(($(date +%s) - 60))000
  for id in "$@"; do
    echo "HSET reservation:res_$id state ACTIVE tenant acme estimate_amount 5 estimate_unit TOKENS affected_scopes '[\"tenant:acme\"]' created_at 1700000000000 expires_at $past"
    echo "ZADD reservation:ttl $past $id"
  done | redis-cli > /dev/null
}
open_budget() { redis-cli HSET budget:tenant:acme:TOKENS allocated 100000 remaining 0 reserved 100000 spent 0 debt 0 > /dev/null; }
# shellcheck disable=SC2034
await() { # SECONDS COMMAND...: until it succeeds; sets $took
  limit=$1; shift; began=$(date +%s)
  until "$@"; do [ $(($(date +%s) - began)) -lt "$limit" ] || return 1; sleep 1; done
  took=$(($(date +%s) - began))
}
written() { # DOCUMENT HEADING NUMBER: a block of a document, word for word
  (cd /root/sweeperd && python3 -m tests.support.documents "$@")
}
block() { # DOCUMENT HEADING NUMBER [LINES]: run it in the clone, up to that line
  written "$1" "$2" "$3" | sed -n "1,${4:-\$}p" > /tmp/block.sh
  (cd /root/sweeperd && sh -eu /tmp/block.sh > /tmp/block.log 2>&1) || { cat /tmp/block.log; fail "block $3 of $2 in $1"; }
}

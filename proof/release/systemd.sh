# Run at each boot of a fresh Debian, as a unit: the documents' blocks, and what goes wrong. The last boot powers off.
exec > /dev/console 2>&1
trap 'systemctl poweroff' EXIT # whatever ends this script
say() { echo "PROOF $1: $2"; }
fail() { echo "FAILED: $1"; journalctl --no-pager -n 60 -u 'sweeperd*'; systemctl status --no-pager 'sweeperd*'; exit 1; }
state() { redis-cli HGET "reservation:res_$1" state; }
expired() { [ "$(state "$1")" = EXPIRED ]; }
reserve() { # ID: overdue by a minute
  past=$(($(date +%s) - 60))000
  redis-cli HSET "reservation:res_$1" state ACTIVE tenant acme estimate_amount 5 estimate_unit TOKENS \
    affected_scopes '["tenant:acme"]' created_at 1700000000000 expires_at $past > /dev/null
  redis-cli ZADD reservation:ttl $past "$1" > /dev/null
}
await() { # SECONDS COMMAND...: until it succeeds; sets $took
  limit=$1; shift; began=$(date +%s)
  until "$@"; do [ $(($(date +%s) - began)) -lt "$limit" ] || return 1; sleep 1; done
  took=$(($(date +%s) - began))
}
swept() { reserve "$1"; await "${2:-30}" expired "$1" || fail "$1 is not swept"; }
block() { (cd /root/sweeperd && sh -eu "/root/proof/$1.sh" > /tmp/block.log 2>&1) || { cat /tmp/block.log; fail "the block $1"; }; }
pid() { systemctl show -P MainPID sweeperd; }
text() { systemctl show -P StatusText sweeperd; }
other() { [ "$(pid)" != "$1" ] && [ "$(pid)" != 0 ] && systemctl is-active -q sweeperd; }
says() { text | grep -q "$1"; }
inactive() { ! systemctl is-active -q "$1"; }

if [ -e /root/proof/rebooted ]; then
  await 60 systemctl is-active -q sweeperd || fail "not active after a reboot"
  swept rebooted
  say "reboot" "active again, sweeps"

  block roles
  await 30 systemctl is-active -q sweeperd@sweep || fail "no sweep"
  await 30 systemctl is-active -q sweeperd@deliver || fail "no delivery"
  swept roles
  [ "$(redis-cli HLEN sweeperd:processes)" -ge 2 ] || fail "not two processes"
  say "roles" "two daemons of one unit and one configuration: $(ss -ltn | grep -o '127.0.0.1:946[0-9]' | tr '\n' ' ')"
  systemctl disable --now sweeperd@sweep sweeperd@deliver

  block timer
  swept timer 90
  systemctl is-failed -q sweeperd-once && fail "the run of the timer failed"
  say "the timer" "sweeps after $took s, the same configuration"

  block uninstall
  systemctl list-unit-files | grep sweeperd && fail "units are left"
  [ ! -e /etc/sweeperd ] && [ ! -e /opt/sweeperd ] || fail "files are left"
  say "uninstalled" "no unit and no file is left"
  echo ALL-SHOWN
  exit 0
fi

await 60 sh -c 'redis-cli PING | grep -q PONG' || fail "redis does not run"
redis-cli HSET budget:tenant:acme:TOKENS allocated 1000 remaining 0 reserved 1000 spent 0 debt 0 > /dev/null
block install
systemctl is-active -q sweeperd || fail "not active after the block"
swept first
say "the block" "active; $(systemctl --version | head -n 1), $(/opt/sweeperd/bin/python --version)"
say "exposure" "$(systemd-analyze security --no-pager sweeperd | grep Overall | sed 's/.*: \([0-9.]* [A-Z]*\).*/\1/')"
say "memory" "$(sed -n 's/^VmRSS:[[:space:]]*//p' "/proc/$(pid)/status")"

main=$(pid); kill -9 "$main"
await 30 other "$main" || fail "not started again after kill -9"
swept killed
say "kill -9" "active again after $took s"

main=$(pid); kill -STOP "$main"
await 120 other "$main" || fail "the watchdog does nothing"
say "SIGSTOP" "replaced by the watchdog after $took s"
swept stopped

sed -i 's/^interval = "5s"/interval = "2s"/' /etc/sweeperd/config.toml; main=$(pid)
systemctl reload sweeperd
await 20 says "every 2 s" || fail "not reloaded"
echo 'nonsense = 1' > /tmp/bad; cat /etc/sweeperd/config.toml >> /tmp/bad; cp /etc/sweeperd/config.toml /tmp/good
cp /tmp/bad /etc/sweeperd/config.toml
systemctl reload sweeperd
await 20 says "refused: /etc/sweeperd/config.toml: nonsense: unknown key" || fail "a refused reload does not show"
journalctl -q -p err -u sweeperd --no-pager | grep -q 'the new settings are refused' || fail "no priority in the journal"
journalctl -q -p err -u sweeperd --no-pager | grep -q '"started"' && fail "a line of no error has its priority"
cp /tmp/good /etc/sweeperd/config.toml; systemctl reload sweeperd
await 20 says "^Sweeping every 2 s" || fail "the refusal stays"
[ "$main" = "$(pid)" ] || fail "a reload has started another process"
say "reload" "taken over, a refused one shows in the status and in journalctl -p err; one process"

mv /etc/sweeperd/secrets/redis-url /tmp/redis-url
systemctl restart sweeperd && fail "it starts without its secret"
sleep 8
inactive sweeperd || fail "it runs without its secret"
systemctl status --no-pager sweeperd | grep -q 'AssertPathExists=/etc/sweeperd/secrets/redis-url was not met' ||
  fail "the missing file is not named"
[ "$(systemctl show -P NRestarts sweeperd)" -le 2 ] || fail "it is tried again and again"
mv /tmp/redis-url /etc/sweeperd/secrets/redis-url
systemctl start sweeperd || fail "it does not start with its secret"
say "a missing secret" "named by its file in systemctl status; no loop"

mkdir -p /etc/systemd/system/sweeperd.service.d
printf '[Service]\nLoadCredential=billing:/etc/sweeperd/secrets/billing\n' > /etc/systemd/system/sweeperd.service.d/billing.conf
systemctl daemon-reload; systemctl restart sweeperd || true
sleep 8
[ "$(systemctl show -P NRestarts sweeperd)" -le 1 ] || fail "a missing credential of a drop-in is a loop"
rm -r /etc/systemd/system/sweeperd.service.d; systemctl daemon-reload; systemctl reset-failed sweeperd || true
systemctl restart sweeperd || fail "it does not start again"
swept credential
say "a missing credential of a drop-in" "no loop"

systemctl restart redis-server
await 60 says "^Sweeping" || fail "not ready after a restart of redis"
touch /root/proof/rebooted
trap - EXIT
systemctl reboot

#!/bin/sh
# Runs the documents' blocks for systemd, and then what goes wrong. It is run twice: after the first boot, and after the
# reboot that must follow.
. "$(dirname "$0")/machine.sh"
fail() { echo "FAILED: $1"; journalctl --no-pager -n 60 -u 'sweeperd*'; systemctl status --no-pager 'sweeperd*'; exit 1; }
swept() { reserve "$1"; await "${2:-30}" expired "$1" || fail "$1 is not swept"; }
pid() { systemctl show -P MainPID sweeperd; }
text() { systemctl show -P StatusText sweeperd; }
other() { [ "$(pid)" != "$1" ] && [ "$(pid)" != 0 ] && systemctl is-active -q sweeperd; }
says() { text | grep -q "$1"; }
booted() { systemctl is-system-running | grep -qE 'running|degraded'; }
inactive() { ! systemctl is-active -q "$1"; }

await 120 booted || fail "not booted"
if [ -e /root/rebooted ]; then
  await 60 systemctl is-active -q sweeperd || fail "not active after a reboot"
  swept rebooted
  say "reboot" "active again, sweeps"

  block docs/how-to/systemd.md "Run it with systemd" 1
  await 30 systemctl is-active -q sweeperd@sweep || fail "no sweep"
  await 30 systemctl is-active -q sweeperd@deliver || fail "no delivery"
  swept roles
  [ "$(redis-cli HLEN sweeperd:processes)" -ge 2 ] || fail "not two processes"
  say "roles" "two daemons of one unit and one configuration: $(ss -ltn | grep -o '127.0.0.1:946[0-9]' | tr '\n' ' ')"
  systemctl disable --now sweeperd@sweep sweeperd@deliver

  block docs/how-to/systemd.md "Run it with systemd" 2
  swept timer 90
  systemctl is-failed -q sweeperd-once && fail "the run of the timer failed"
  say "the timer" "sweeps after $took s, the same configuration"

  block docs/how-to/uninstall.md "Uninstall the systemd units" 0
  systemctl list-unit-files | grep sweeperd && fail "units are left"
  [ ! -e /etc/sweeperd ] && [ ! -e /opt/sweeperd ] || fail "files are left"
  say "uninstalled" "no unit and no file is left"
  exit 0
fi

await 60 sh -c 'redis-cli PING | grep -q PONG' || fail "redis does not run"
open_budget
block docs/how-to/systemd.md "Run it with systemd" 0
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
touch /root/rebooted

#!/bin/sh
# Runs the documents' blocks for cron, then the real cron daemon.
# The first argument: how many late reservations are timed beside a slow receiver. [default: 3]
. "$(dirname "$0")/machine.sh"
fail() { echo "FAILED: $1"; cat /tmp/mail /tmp/redis.log 2>/dev/null; exit 1; }

redis-server --daemonize yes --save '' > /tmp/redis.log
until redis-cli PING > /dev/null 2>&1; do sleep 1; done
open_budget
# A mail server that keeps what it is given.
printf '#!/bin/sh\ncat >> /tmp/mail\n' > /usr/sbin/sendmail; chmod 755 /usr/sbin/sendmail; touch /tmp/mail; chmod 666 /tmp/mail
block docs/how-to/systemd.md "Run it with systemd" 0 3
block docs/how-to/cron.md "Run it from cron" 0
cron

reserve first
await 130 expired first || fail "cron has swept nothing"
say "cron's first sweep" "after $took s"
after_two_runs() { [ "$(redis-cli HGET sweeperd:ticks at)" -gt $(((swept + 65) * 1000)) ]; }
swept=$(date +%s)
await 200 after_two_runs || fail "cron does not go on"
[ -s /tmp/mail ] && fail "a sweep that went well was mailed"
say "a sweep that went well" "no mail"

# A receiver that takes 4 s for each event, with more events than it can take.
cat > /tmp/receiver.py <<'END'
import http.server as h, time
def do_POST(s):
    s.rfile.read(int(s.headers["Content-Length"])); time.sleep(4); s.send_response(204); s.end_headers()
h.BaseHTTPRequestHandler.do_POST = do_POST
h.BaseHTTPRequestHandler.log_message = lambda *_: None
h.ThreadingHTTPServer(("127.0.0.1", 8080), h.BaseHTTPRequestHandler).serve_forever()
END
python3 /tmp/receiver.py &
printf '[[webhooks.endpoints]]\nname = "slow"\nurl = "http://127.0.0.1:8080/"\n' >> /etc/sweeperd/config.toml
await 130 redis-cli XINFO GROUPS sweeperd:events > /dev/null
await 130 sh -c 'redis-cli XINFO GROUPS sweeperd:events | grep -q slow' || fail "the endpoint is not known"
reserve $(seq -f 'many%g' 1200)
await 130 expired many1200 || fail "the backlog is not swept"
worst=0
for minute in $(seq "${1:-3}"); do
  reserve "late$minute"
  await 200 expired "late$minute" || fail "nothing is swept beside a slow receiver"
  [ "$took" -gt "$worst" ] && worst=$took
  sleep 20
done
[ "$worst" -le 75 ] || fail "a sweep came $worst s late beside a slow receiver"
say "the latest sweep beside a slow receiver with 1,200 events" "$worst s after its deadline"

# Nothing but what goes wrong is mailed.
: > /tmp/mail
redis-cli shutdown nosave 2> /dev/null
await 130 grep -q 'redis is not available' /tmp/mail || fail "a Redis that is down is not mailed"
say "a Redis that is down" "mailed after $took s"
sed -i 's/^url = .*/url = "nonsense"/' /etc/sweeperd/config.toml
await 130 grep -q 'config.toml: redis.url' /tmp/mail || fail "a bad setting is not mailed"
say "a bad setting" "mailed after $took s, with its key"

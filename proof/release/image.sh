#!/usr/bin/env bash
# Runs an image with the user, limits, mounts and arguments of deploy/k8s/parts/deployment/deployment.yaml: probes, a sweep
# of 10,000 overdue reservations, three commands beside the daemon, SIGTERM. The argument: the image. Needs docker.
set -euo pipefail
cd "$(dirname "$0")/../.."
redis-cli() { docker exec --interactive redis redis-cli "$@"; }
. proof/release/machine.sh
fail() { echo "FAILED: $1"; exit 1; }
answers() { curl --fail --silent "http://127.0.0.1:9464/$1" > /dev/null; }
swept() { [ "$(redis-cli ZCARD reservation:ttl)" = 0 ]; }
started() { docker inspect --format '{{.State.StartedAt}} {{.RestartCount}}' sweeperd; }

work=$(mktemp -d)
trap 'docker logs sweeperd; docker rm --force sweeperd redis > /dev/null' EXIT
cp deploy/k8s/example/config.toml "$work"
echo redis://127.0.0.1:6379/0 > "$work/redis-url"
chmod 755 "$work"
docker run --detach --network host --name redis redis:8-alpine > /dev/null
await 60 redis-cli PING > /dev/null || fail "no Redis"
open_budget
reserve $(seq -f 'r%g' 10000)

docker run --detach --network host --name sweeperd --read-only --cap-drop ALL --security-opt no-new-privileges \
  --user 65532:65532 --memory 256m --env SWEEPERD_REDIS__URL=file:/run/secrets/sweeperd/redis-url \
  --volume "$work:/etc/sweeperd:ro" --volume "$work:/run/secrets/sweeperd:ro" \
  "$1" --config /etc/sweeperd/config.toml > /dev/null
await 60 answers readyz || fail "not ready"
say "ready" "after $took s"
answers healthz || fail "not healthy"
await 60 swept || fail "not swept"
[ "$(redis-cli XLEN sweeperd:events)" = 10000 ] || fail "not each expiry has its event"
say "revision" "$(docker inspect --format '{{index .Config.Labels "org.opencontainers.image.revision"}}' sweeperd)"
first=$(started)
for _ in 1 2 3; do
  commands=()
  for _ in 1 2 3; do docker exec sweeperd sweeperd status > /dev/null & commands+=($!); done
  for command in "${commands[@]}"; do wait "$command" || fail "a command beside the daemon"; done
done
[ "$(started)" = "$first" ] || fail "the daemon was started again"
# The file of cgroup v2, or of v1.
peak=$(docker exec sweeperd sh -c 'cat /sys/fs/cgroup/memory.peak || cat /sys/fs/cgroup/memory/memory.max_usage_in_bytes' 2> /dev/null)
say "most memory, with three commands at once" "$peak bytes"
docker stop --time 40 sweeperd > /dev/null
[ "$(docker inspect --format '{{.State.ExitCode}}' sweeperd)" = 0 ] || fail "SIGTERM does not end it well"
say "SIGTERM" "exit code 0"

#!/usr/bin/env bash
# Installs the chart on the cluster of $KUBECONFIG as a user would: a Redis, the rights that a pod prints, `helm test`, changed
# settings, and the removal. Needs helm and kubectl. The cluster has the images, and no namespace `sweeperd-chart`.
#
#   bash proof/release/chart.sh sweeperd:0.1.0 redis:8-alpine
set -euxo pipefail
cd "$(dirname "$0")/../.."

image=$1 redis=$2 namespace=sweeperd-chart
chart() { helm "$@" --namespace "$namespace"; }
kube() { kubectl --namespace "$namespace" "$@"; }

kubectl create namespace "$namespace"
trap 'kube get pods,events || true; kubectl delete namespace "$namespace" --wait=false' EXIT
kubectl label namespace "$namespace" pod-security.kubernetes.io/enforce=restricted

kube apply -f - <<END
apiVersion: v1
kind: Pod
metadata: {name: redis, labels: {app: redis}}
spec:
  securityContext: {runAsNonRoot: true, runAsUser: 999, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: redis
      image: $redis
      command: [redis-server, --save, "", --protected-mode, "no", --maxmemory-policy, noeviction]
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
---
apiVersion: v1
kind: Service
metadata: {name: redis}
spec: {selector: {app: redis}, ports: [{port: 6379}]}
END
kube wait --for=condition=Ready pod/redis --timeout=180s
kube create secret generic shop-sweeperd --from-literal=redis-url=redis://sweeperd:secret@redis:6379/0

chart install shop deploy/helm/sweeperd --set "image.repository=${image%:*}" --set "image.tag=${image##*:}"
for _ in $(seq 60); do
  pod=$(kube get pods -l app.kubernetes.io/instance=shop -o jsonpath='{.items[0].metadata.name}' || true)
  [ -z "$pod" ] || break
  sleep 1
done
kube wait --for=jsonpath='{.status.phase}'=Running "pod/$pod" --timeout=180s
kube exec "$pod" -- sweeperd acl | kube exec -i redis -- redis-cli
kube exec redis -- redis-cli ACL SETUSER sweeperd '>secret'
kube rollout status deployment/shop-sweeperd --timeout=240s
chart test shop --logs

# Changed settings are rolled out; wrong ones are refused before they reach the cluster.
chart upgrade shop deploy/helm/sweeperd --reuse-values --set config.sweep.interval=2s
kube rollout status deployment/shop-sweeperd --timeout=240s
kube exec deployment/shop-sweeperd -- sweeperd config | grep '^sweep.interval.*2s.*file'
if chart upgrade shop deploy/helm/sweeperd --reuse-values --set config.sweep.intervall=2s; then exit 1; fi

chart uninstall shop --wait
test -z "$(kube get deployments,services,configmaps -l app.kubernetes.io/instance=shop -o name)"

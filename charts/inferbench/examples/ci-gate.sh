#!/usr/bin/env bash
# Applies the benchmark in a file and ends when its run has ended: with 0 if it is Ready, else with 1 and the reason.
#   ci-gate.sh benchmark.yaml NAME [TIMEOUT]
set -euo pipefail

kubectl apply --filename="$1"
# The conditions say of which generation they speak, so that neither is one of the run before.
for end in Ready Stalled; do
  kubectl wait "ib/$2" --for="condition=$end" --timeout="${3:-2h}" &
done
wait -n || true
kill $(jobs -p) 2>/dev/null || true
kubectl get "ib/$2" --output=jsonpath='{.status.conditions[?(@.type=="Ready")].message}{"\n"}'
exec kubectl wait "ib/$2" --for=condition=Ready --timeout=0

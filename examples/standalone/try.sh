#!/bin/sh
# Does what README.md describes, in a temporary folder, and leaves nothing behind.
# usage: try.sh [folder of the binaries]      default: target/debug of this repository
set -eu

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
bin=${1:-${CARGO_TARGET_DIR:-$here/../../target}/debug}
bin=$(CDPATH= cd -- "$bin" && pwd)
PATH=$bin:$PATH
for program in nova-supervisor nova-policy nova-relay novalet-ref nova-lab curl openssl; do
    command -v "$program" > /dev/null || { echo "$program is missing: run cargo build --bins, install curl and openssl" >&2; exit 2; }
done

# Short, because the path of a Unix socket has at most 107 bytes.
work=$(mktemp -d "${TMPDIR:-/tmp}/nova.XXXXXX")
started=
finish() {
    code=$?
    trap - EXIT INT TERM HUP
    if [ "$code" -ne 0 ]; then
        tail -n 20 "$work"/*.log "$work"/*.jsonl >&2 || true
    fi
    # shellcheck disable=SC2086
    [ -z "$started" ] || kill $started 2> /dev/null || true
    wait
    rm -rf "$work"
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

cp "$here"/*.toml "$here"/*.yaml "$here"/*.json "$here"/*.ext "$work"
cd "$work"
umask 077

# in_background <name> <command...>: output into <name>.log
in_background() {
    log=$1.log
    shift
    "$@" > "$log" 2>&1 < "${input:-/dev/null}" &
    started="$started $!"
}

# eventually <what> <command...>: until it succeeds, 30 s at most
eventually() {
    what=$1
    shift
    tries=0
    until "$@" > /dev/null 2>&1; do
        tries=$((tries + 1))
        # shellcheck disable=SC2086
        if [ "$tries" -gt 150 ] || ! kill -0 $started 2> /dev/null; then
            echo "failed: $what: not within 30 s, or a program ended early" >&2
            exit 1
        fi
        sleep 0.2
    done
}

# step <what> <wanted> <got>
step() {
    if [ "$2" != "$3" ]; then
        echo "failed: $1: wanted $2, got $3" >&2
        exit 1
    fi
    echo "ok: $1: $3"
}

serving() {
    [ "$(nova-supervisor endpoints --socket admin.sock --json | grep -o '"stage":"serving"' | wc -l)" -eq 2 ]
}

# found <pattern> <file>: yes or no
found() {
    if grep -q -- "$1" "$2"; then echo yes; else echo no; fi
}

# What a caller outside gets: the status, or "refused" when TLS ends it.
as_caller() {
    "$@" || echo refused
}

allowed() {
    [ "$(curl -s -m 10 -o answer -w '%{http_code}' -x http://127.0.0.1:23128 http://service-a.t.nova:28443/v1/invoices/7)" = 200 ]
}

# 1. A partner's CA with one caller, and a stranger's CA with another.
for ca in partner stranger; do
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj "/CN=$ca CA" -addext keyUsage=critical,keyCertSign -keyout $ca-ca.key -out $ca-ca.pem 2>> openssl.log
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=shop -keyout $ca.key -out $ca.csr 2>> openssl.log
    openssl x509 -req -days 1 -in $ca.csr -CA $ca-ca.pem -CAkey $ca-ca.key -CAcreateserial -extfile caller.ext -out $ca.pem 2>> openssl.log
done

# 2. Key, bundle, check.
nova-policy keygen --key-id k1 --output key.pem --public keys.json > keygen.log
nova-policy bundle build --rules rules.yaml --workloads endpoints.yaml --node node-1 --key key.pem --key-id k1 --output bundle.tar.gz > bundle.log
step "configuration and endpoints are checked" "no mistakes" "$(nova-supervisor check --config supervisor.toml)"

# 3. The supervisor.
mkdir -p guests/pod-x guests/pod-a guest-x guest-a
in_background supervisor nova-supervisor run --config supervisor.toml
eventually "the operator's socket" nova-supervisor policy --socket admin.sock

# 4. Two guests, each a muxer and a relay; in service-a an app.
in_background mux-x novalet-ref mux --socket guests/pod-x/v.sock --guest guest-x
in_background mux-a novalet-ref mux --socket guests/pod-a/v.sock --guest guest-a
input=guest-x.json
in_background relay-x nova-relay
input=guest-a.json
in_background relay-a nova-relay
input=
in_background app nova-lab app --listen 127.0.0.1:28080 --name service-a --records app.jsonl
eventually "both endpoints serving" serving
nova-supervisor ready --socket admin.sock > ready.log
step "the node is ready" yes "$(found '^ready: node-1' ready.log)"

# 5. Calls of guest x.
status=$(curl -s -m 20 -o answer -w '%{http_code}' -x http://127.0.0.1:23128 http://service-a.t.nova:28443/v1/orders/42)
step "guest x reads an order" 200 "$status"
step "the app sees who calls" yes "$(found 'URI=spiffe://dev.invalid/t/t/w/x' app.jsonl)"
status=$(curl -s -m 20 -D head -o answer -w '%{http_code}' -x http://127.0.0.1:23128 http://service-a.t.nova:28443/v1/invoices/7)
step "guest x reads an invoice" 403 "$status"
step "the app has seen it" no "$(found /v1/invoices app.jsonl)"

# 6. Why?
id=$(sed -n 's/^x-nova-decision-id: *\([0-9a-f-]*\).*/\1/p' head)
eventually "the denial in the audit log" grep -q "$id" audit.jsonl
nova-supervisor replay --socket admin.sock "$id" > replay.log
cat replay.log
step "replay says that it would be refused now too" yes "$(found '^then: deny (l7_mismatch).*now: deny (l7_mismatch)' replay.log)"

# 7. Another rule, published under the running supervisor.
sed -i 's|paths: \["/v1/orders/\*\*"\]|paths: ["/v1/orders/**", "/v1/invoices/**"]|' rules.yaml
nova-policy bundle build --rules rules.yaml --workloads endpoints.yaml --node node-1 --key key.pem --key-id k1 --output bundle.tar.gz >> bundle.log
eventually "the new rule" allowed
step "guest x reads the invoice without a restart" 200 "$(curl -s -m 20 -o answer -w '%{http_code}' -x http://127.0.0.1:23128 http://service-a.t.nova:28443/v1/invoices/7)"
nova-supervisor replay --socket admin.sock "$id" > replay.log
step "replay says that it would pass now" yes "$(found '^then: deny (l7_mismatch).*now: allow (rule x-to-a)' replay.log)"

# 8. Callers from outside, with certificates.
status=$(as_caller curl -s -m 20 -o answer -w '%{http_code}' --resolve service-a.t.nova:28443:127.0.0.21 --cacert dev-ca.pem --cert partner.pem --key partner.key https://service-a.t.nova:28443/v1/orders/42)
step "the partner reads an order" 200 "$status"
status=$(as_caller curl -s -m 20 -o answer -w '' --resolve service-a.t.nova:28443:127.0.0.21 --cacert dev-ca.pem --cert stranger.pem --key stranger.key https://service-a.t.nova:28443/v1/orders/42)
step "the same name from another CA" refused "$status"
status=$(as_caller curl -s -m 20 -o answer -w '' --resolve service-a.t.nova:28443:127.0.0.21 --cacert dev-ca.pem https://service-a.t.nova:28443/v1/orders/42)
step "no certificate" refused "$status"
eventually "both refusals in the audit log" grep -q '"reason":"no_client_cert"' audit.jsonl
step "the audit log says why" yes "$(found '"reason":"peer_untrusted"' audit.jsonl)"
echo "all steps passed"

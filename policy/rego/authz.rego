package nova.authz

import rego.v1

# The one policy of every node. It is static: rules are data, compiled by `nova-policy`.
#
# Only indexed lookups by (workload, peer), prefix and segment compares: engines disagree on globs and regular
# expressions. No negation of rules and no default but deny: an error inside a rule makes it undefined, and undefined
# must never grant anything. `decision` is always an object.

default decision := {"allow": false, "audit": false, "rule_id": "", "credential": "", "reason": "no_grant"}

# ---- candidates: the rules of this (workload, peer) pair, whatever the request says

candidates contains rule if {
	input.direction == "egress"
	some rule in data.nova.egress[input.source].exact[destination]
}

candidates contains rule if {
	input.direction == "egress"
	some entry in data.nova.egress[input.source].suffix
	entry.port == input.dest_port
	endswith(input.dest_host, entry.suffix)
	some rule in entry.rules
}

candidates contains rule if {
	input.direction == "egress"
	some entry in data.nova.egress[input.source].cidr
	entry.port == input.dest_port
	destination_is_address
	net.cidr_contains(entry.cidr, input.dest_host)
	some rule in entry.rules
}

# A peer of our own trust domain: its SPIFFE ID counts only when our own trust bundle verified it.
candidates contains rule if {
	input.direction == "ingress"
	input.peer_ca in {"", "spiffe"}
	some rule in data.nova.ingress[input.target][input.port].peer[input.peer]
}

# A peer of an external CA: looked up under that CA alone, so no CA can speak for another one or for us.
candidates contains rule if {
	input.direction == "ingress"
	some rule in data.nova.ingress[input.target][input.port].external[input.peer_ca].exact[input.peer]
}

candidates contains rule if {
	input.direction == "ingress"
	some entry in data.nova.ingress[input.target][input.port].external[input.peer_ca].prefix
	startswith(input.peer, entry.prefix)
	some rule in entry.rules
}

candidates contains rule if {
	input.direction == "ingress"
	some entry in data.nova.ingress[input.target][input.port].cidr
	net.cidr_contains(entry.cidr, input.src_ip)
	some rule in entry.rules
}

destination := concat(":", [input.dest_host, format_int(input.dest_port, 10)])

# Hosts are canonical (see `host.rs`): a name never has ':' and never consists of digits and dots alone.
destination_is_address if contains(input.dest_host, ":")

destination_is_address if trim(input.dest_host, "0123456789.") == ""

# ---- what the request says

l7_ok(rule) if rule.l4 == true

l7_ok(rule) if {
	method_ok(rule)
	path_ok(rule)
}

method_ok(rule) if rule.methods[input.method]

method_ok(rule) if rule.methods["*"]

path_ok(rule) if rule.exact[input.path]

path_ok(rule) if {
	some prefix in rule.prefix
	startswith(input.path, prefix)
}

path_ok(rule) if {
	some pattern in rule.segs
	count(segments) == count(pattern)
	segments_ok(pattern)
}

path_ok(rule) if {
	some pattern in rule.segs_prefix
	count(segments) > count(pattern)
	segments_ok(pattern)
}

segments := split(trim_prefix(input.path, "/"), "/")

# No `every`: with a function that fails inside, the regorus 0.14.1 machine lets it pass (the interpreter does not).
segments_ok(pattern) if {
	agreeing := [i | some i, want in pattern; segment_ok(want, segments[i])]
	count(agreeing) == count(pattern)
}

segment_ok(want, got) if want == got

# '*' never covers parameters: servers disagree on whether they belong to the segment.
segment_ok("*", got) if {
	got != ""
	contains(got, ";") == false
	contains(got, "%3B") == false
}

# ---- verdict: the lowest rank wins; ranks are unique per bundle

opaque := {rule.rank: rule | some rule in candidates; rule.l4 == true}

matched := {rule.rank: rule | some rule in candidates; l7_ok(rule)}

audited := {rule.rank: rule | some rule in candidates; rule.audit == true}

credentialed := {rule.rank: rule | some rule in candidates; rule.credential != ""}

decision := {"allow": true, "audit": false, "rule_id": "", "credential": "", "reason": "connect"} if {
	input.phase == "connect"
	count(candidates) > 0
}

decision := granted(opaque[min(object.keys(opaque))]) if {
	input.phase == "opaque"
	count(opaque) > 0
}

decision := {"allow": false, "audit": false, "rule_id": "", "credential": "", "reason": "needs_opaque_grant"} if {
	input.phase == "opaque"
	count(opaque) == 0
	count(candidates) > 0
}

decision := granted(matched[min(object.keys(matched))]) if {
	input.phase == "request"
	count(matched) > 0
}

# Audit mode lets a miss through only when every rule of the pair is in audit mode and none carries a credential.
decision := would_deny(audited[min(object.keys(audited))]) if {
	input.phase == "request"
	count(matched) == 0
	count(audited) > 0
	count(audited) == count(candidates)
	count(credentialed) == 0
}

decision := {"allow": false, "audit": false, "rule_id": "", "credential": "", "reason": "l7_mismatch"} if {
	input.phase == "request"
	count(matched) == 0
	count(candidates) > 0
	enforced
}

enforced if count(audited) < count(candidates)

enforced if count(credentialed) > 0

granted(rule) := {
	"allow": true,
	"audit": false,
	"rule_id": rule.id,
	"credential": object.get(rule, "credential", ""),
	"reason": "rule",
}

would_deny(rule) := {"allow": true, "audit": true, "rule_id": rule.id, "credential": "", "reason": "would_deny"}

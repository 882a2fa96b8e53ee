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

# ICMP has no port; the list is one of its own, so no rule for bytes can ever stand for it.
candidates contains rule if {
	input.direction == "egress"
	destination_is_address
	some entry in data.nova.egress[input.source].icmp
	net.cidr_contains(entry.cidr, input.dest_host)
	some rule in entry.rules
	rule.icmp.types[input.icmp]
}

# A peer of our own trust domain: its SPIFFE ID counts only when our own trust bundle verified it.
candidates contains rule if {
	input.direction == "ingress"
	input.peer_ca in {"", "spiffe"}
	some rule in data.nova.ingress[input.target][input.port].peer[input.peer]
	source_ok(rule)
}

# A peer of an external CA: looked up under that CA alone, so no CA can speak for another one or for us.
candidates contains rule if {
	input.direction == "ingress"
	some rule in data.nova.ingress[input.target][input.port].external[input.peer_ca].exact[input.peer]
	source_ok(rule)
}

candidates contains rule if {
	input.direction == "ingress"
	some entry in data.nova.ingress[input.target][input.port].external[input.peer_ca].prefix
	startswith(input.peer, entry.prefix)
	some rule in entry.rules
	source_ok(rule)
}

candidates contains rule if {
	input.direction == "ingress"
	some name in input.peer_dns
	some rule in data.nova.ingress[input.target][input.port].external[input.peer_ca].dns[name]
	source_ok(rule)
}

candidates contains rule if {
	input.direction == "ingress"
	some name in input.peer_dns
	some entry in data.nova.ingress[input.target][input.port].external[input.peer_ca].dns_suffix
	endswith(name, entry.suffix)
	some rule in entry.rules
	source_ok(rule)
}

candidates contains rule if {
	input.direction == "ingress"
	some rule in data.nova.ingress[input.target][input.port].external[input.peer_ca].cn[input.peer_cn]
	source_ok(rule)
}

candidates contains rule if {
	input.direction == "ingress"
	some entry in data.nova.ingress[input.target][input.port].cidr
	net.cidr_contains(entry.cidr, input.src_ip)
	some rule in entry.rules
}

# Tokens come with requests: before the first one, whoever comes from the right place may connect and bring one.
candidates contains rule if {
	input.direction == "ingress"
	input.phase == "connect"
	some rules in data.nova.ingress[input.target][input.port].jwt
	some rule in rules
	source_ok(rule)
}

candidates contains rule if {
	input.direction == "ingress"
	input.phase == "request"
	some rule in data.nova.ingress[input.target][input.port].jwt[input.jwt.issuer]
	source_ok(rule)
	subject_ok(rule)
	claims_ok(rule)
}

source_ok(rule) if object.get(rule, "src", "") == ""

source_ok(rule) if net.cidr_contains(rule.src, input.src_ip)

subject_ok(rule) if object.get(rule.jwt, "subject", "") == ""

subject_ok(rule) if rule.jwt.subject == input.jwt.subject

claims_ok(rule) if {
	agreeing := {name | some name, wanted in rule.jwt.claims; some value in input.jwt.claims[name]; wanted[value]}
	count(agreeing) == count(rule.jwt.claims)
}

destination := concat(":", [input.dest_host, format_int(input.dest_port, 10)])

# Hosts are canonical (see `host.rs`): a name never has ':' and never consists of digits and dots alone.
destination_is_address if contains(input.dest_host, ":")

destination_is_address if trim(input.dest_host, "0123456789.") == ""

# ---- what the request says

l7_ok(rule) if {
	rule.l4 == true
	slash_ok(rule)
}

l7_ok(rule) if {
	method_ok(rule)
	path_ok(rule)
	upgrade_ok(rule)
	slash_ok(rule)
}

# Some servers take an escaped slash for a separator, others for a part of a name: a rule that does not say that it accepts
# one matches no path with it. A canonical path spells it in this one way.
escaped := [path | path := input.path; contains(path, "%2F")]

slash_ok(_) if count(escaped) == 0

slash_ok(rule) if rule.encoded_slash == true

upgrade_ok(_) if object.get(input, "upgrade", "") == ""

upgrade_ok(rule) if rule.upgrade[input.upgrade]

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

# The target `*` is no path: only a rule that lists it matches it.
segments := split(trim_prefix(input.path, "/"), "/") if startswith(input.path, "/")

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

# A rule that needs more than the asking supervisor can do grants nothing, but it still belongs to the pair.
able(rule) if count(object.get(rule, "needs", [])) == 0

able(rule) if {
	agreeing := {need | some need in rule.needs; need in input.can}
	count(agreeing) == count(rule.needs)
}

usable := {rule.rank | some rule in candidates; able(rule)}

opaque := {rule.rank: rule | some rule in candidates; rule.l4 == true; able(rule)}

matched := {rule.rank: rule | some rule in candidates; l7_ok(rule); able(rule)}

# Rules that may be asked about this path at all.
accepting := {rule.rank | some rule in candidates; slash_ok(rule)}

audited := {rule.rank: rule | some rule in candidates; rule.audit == true}

credentialed := {rule.rank: rule | some rule in candidates; rule.credential != ""}

decision := {"allow": true, "audit": false, "rule_id": "", "credential": "", "reason": "connect"} if {
	input.phase == "connect"
	count(usable) > 0
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

# Audit mode lets a miss through only when every rule of the pair is in audit mode and could grant, none carries a
# credential, the request does not turn into uninspected bytes, and some rule accepts its path.
decision := would_deny(audited[min(object.keys(audited))]) if {
	input.phase == "request"
	count(matched) == 0
	count(accepting) > 0
	count(audited) > 0
	count(audited) == count(candidates)
	count(usable) == count(candidates)
	count(credentialed) == 0
	object.get(input, "upgrade", "") == ""
}

decision := {"allow": false, "audit": false, "rule_id": "", "credential": "", "reason": "escaped_slash"} if {
	input.phase == "request"
	count(accepting) == 0
	count(candidates) > 0
}

decision := {"allow": false, "audit": false, "rule_id": "", "credential": "", "reason": "l7_mismatch"} if {
	input.phase == "request"
	count(matched) == 0
	count(accepting) > 0
	enforced
}

enforced if count(audited) < count(candidates)

enforced if count(usable) < count(candidates)

enforced if count(credentialed) > 0

enforced if object.get(input, "upgrade", "") != ""

granted(rule) := {
	"allow": true,
	"audit": false,
	"rule_id": rule.id,
	"credential": object.get(rule, "credential", ""),
	"reason": "rule",
}

would_deny(rule) := {"allow": true, "audit": true, "rule_id": rule.id, "credential": "", "reason": "would_deny"}

//! `supervisor.toml`: every mistake is reported, at once, with its place and a remedy; and nothing else is.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use nova_supervisor::config::{Config, ConfigErrors, EndpointSource, IdentityConfig, Mode, RouteConfig};

const GOOD: &str = r#"
[node]
id = "node-1"
mode = "dev"
[endpoints]
file = "endpoints.yaml"
[policy]
bundle = "bundle.tar.gz"
keys = "keys.json"
store = "/var/lib/nova/store"
[identity]
source = "dev"
[guests]
root = "guests"
[audit]
file = "audit.jsonl"
[admin]
socket = "admin.sock"
"#;

fn parse(text: &str) -> Result<Config, ConfigErrors> {
    Config::parse(text, Path::new("/etc/nova/supervisor.toml"))
}

fn mistakes(text: &str) -> Vec<String> {
    let errors = parse(text).expect_err("the text has mistakes");
    errors.0.iter().map(ToString::to_string).collect()
}

/// The mistakes must be exactly these: each pair is the beginning of a line and a piece of its remedy.
fn assert_mistakes(text: &str, wanted: &[(&str, &str)]) {
    let got = mistakes(text);
    for (start, remedy) in wanted {
        let found = got.iter().any(|line| line.starts_with(start) && line.contains(remedy));
        assert!(found, "no line starts with {start:?} and holds {remedy:?} in:\n{}", got.join("\n"));
    }
    assert_eq!(got.len(), wanted.len(), "more was reported than expected:\n{}", got.join("\n"));
}

// covers: A12
#[test]
fn fifteen_mistakes_in_one_file_are_all_reported_with_place_and_remedy() {
    let text = r#"[node]
mode = "prod"
slot = 2
uid = 100
[endpoints]
control = "/run/novalet.sock"
file = "endpoints.yaml"
[policy]
bundel = "bundle.tar.gz"
keys = "keys.json"
store = "store"
stale_grace = "24 hours"
[identity]
source = "files"
[guests]
root = "guests"
host_port = 1025
[routes]
mode = "managed"
subnet = "10.64.3.7/24"
[resolver]
servers = ["10.0.0.2", "dns.example.com"]
[audit]
file = "audit.jsonl"
required = "yes"
[admin]
socket = "admin.sock"
[polcy]
"#;
    let file = "/etc/nova/supervisor.toml";
    let at = |place: &str| format!("{file}:{place}");
    let wanted = [
        (at("1:2: node.id: is missing"), "bundles are signed for"),
        (at("2:8: node.mode: \"prod\" is not a mode"), "\"production\""),
        (at("3:8: node.slot: 2 is out of range"), "0 to 1"),
        (at("4:1: node.uid: stands alone"), "add gid"),
        (at("7:1: endpoints.file: stands beside control"), "exactly one"),
        (at("8:2: policy.bundle: is missing"), "bundle.tar.gz"),
        (at("9:1: policy.bundel: there is no such key"), "did you mean bundle?"),
        (at("12:15: policy.stale_grace: \"24 hours\""), "\"24h\""),
        (at("13:2: identity.dir: is missing"), "folder"),
        (at("13:2: identity.trust_domain: is missing"), "without spiffe://"),
        (at("17:13: guests.host_port: 1025 is out of range"), "15000"),
        (at("20:10: routes.subnet: \"10.64.3.7/24\" has host bits"), "10.64.3.0/24"),
        (at("22:24: resolver.servers: \"dns.example.com\""), "10.0.0.2:53"),
        (at("25:12: audit.required: is not true or false"), "without quotes"),
        (at("28:2: polcy: there is no such section"), "did you mean policy?"),
    ];
    let wanted: Vec<_> = wanted.iter().map(|(start, remedy)| (start.as_str(), *remedy)).collect();
    assert_mistakes(text, &wanted);
}

// covers: A12
#[test]
fn an_empty_file_names_every_section_that_is_needed() {
    let got = mistakes("");
    for section in ["node", "endpoints", "policy", "identity", "guests", "audit", "admin"] {
        assert!(got.iter().any(|line| line.contains(&format!(" {section}: is missing"))), "{section}: {got:?}");
    }
    assert_eq!(got.len(), 7, "{got:?}");
}

// covers: A12
#[test]
fn broken_toml_is_reported_with_the_mistakes_of_other_lines_but_without_guesses() {
    let text = "[node]\nid = node-1\nslot = 7\n[policy\nbundle = 'b'\n[guests]\nroot = 1\n";
    let got = mistakes(text);
    assert!(got.iter().any(|line| line.contains(":2:") && line.contains("not valid TOML")), "{got:?}");
    assert!(got.iter().any(|line| line.contains(":4:") && line.contains("not valid TOML")), "{got:?}");
    assert!(got.iter().any(|line| line.contains(":3:8: node.slot: 7 is out of range")), "{got:?}");
    assert!(!got.iter().any(|line| line.contains("is missing")), "a guess: {got:?}");
}

// covers: A6 A12
#[test]
fn what_is_only_for_a_lab_is_refused_in_production() {
    let lab = "[lab]\nallow_destinations = [\"127.0.0.0/8\"]\n[interception]\nlifetime = \"5m\"\n";
    for production in [GOOD.replace("mode = \"dev\"\n", ""), GOOD.replace("\"dev\"\n[end", "\"production\"\n[end")] {
        let got = mistakes(&format!("{production}{lab}"));
        assert_eq!(got.len(), 3, "{got:?}");
        assert!(
            got.iter().any(|mistake| mistake.contains("lifetime") && mistake.contains("shorter than an hour")),
            "{got:?}"
        );
        assert!(got[0].contains("identity.source: the dev identity source") && got[0].contains("mode = \"dev\""));
        assert!(got[1].contains("lab: lab exceptions"), "{got:?}");
    }
    let config = parse(&format!("{GOOD}{lab}")).expect("a lab in dev mode");
    assert_eq!(config.lab_destinations, ["127.0.0.0/8".parse().expect("a network")]);
}

#[test]
fn the_trust_domain_of_the_dev_source_is_refused_for_files() {
    for bad in ["dev.invalid", "spiffe://prod.example", "Prod.Example", "a/b", ""] {
        let files = format!("source = \"files\"\ndir = \"certs\"\ntrust_domain = \"{bad}\"");
        let got = mistakes(&GOOD.replace("source = \"dev\"", &files));
        assert!(got.len() == 1 && got[0].contains(":14:16: identity.trust_domain:"), "{bad:?}: {got:?}");
    }
}

#[test]
fn keys_without_a_meaning_are_refused_not_ignored() {
    let text = GOOD
        .replace("file = \"endpoints.yaml\"", "file = \"endpoints.yaml\"\nnovalet_uid = 0")
        .replace("source = \"dev\"", "source = \"dev\"\ndir = \"certs\"")
        + "[routes]\nsubnet = \"10.0.0.0/8\"\n";
    let got = mistakes(&text);
    for key in ["endpoints.novalet_uid", "identity.dir", "routes.subnet"] {
        assert!(got.iter().any(|line| line.contains(&format!("{key}: has no meaning without"))), "{key}: {got:?}");
    }
    assert_eq!(got.len(), 3, "{got:?}");
}

#[test]
fn a_socket_path_the_kernel_cannot_hold_is_refused() {
    let long = format!("/run/{}/admin.sock", "x".repeat(100));
    let got = mistakes(&GOOD.replace("admin.sock", &long));
    assert_eq!(got.len(), 1, "{got:?}");
    assert!(got[0].contains("admin.socket") && got[0].contains("107"), "{got:?}");
}

#[test]
fn a_key_given_twice_is_refused() {
    let got = mistakes(&GOOD.replace("id = \"node-1\"", "id = \"node-1\"\nid = \"node-2\""));
    assert!(got.iter().any(|line| line.contains(":4:1:") && line.contains("duplicate key")), "{got:?}");
}

#[test]
fn hosts_must_be_names_with_addresses() {
    let text =
        format!("{GOOD}[resolver.hosts]\n\"bad name\" = \"10.0.0.1\"\nempty = []\n\"a.example\" = \"b.example\"\n");
    let got = mistakes(&text);
    assert!(got.iter().any(|line| line.contains("\"bad name\" is not a host name")), "{got:?}");
    assert!(got.iter().any(|line| line.contains("empty has no address")), "{got:?}");
    assert!(got.iter().any(|line| line.contains("resolver.hosts.a.example: \"b.example\" is not an IP")), "{got:?}");
}

// covers: A13
#[test]
fn a_short_file_is_enough_and_its_paths_are_relative_to_it() {
    let config = parse(GOOD).expect("no mistakes");
    assert_eq!((config.node.id.as_str(), config.node.mode, config.node.slot), ("node-1", Mode::Dev, 0));
    assert!(config.node.workers >= 1 && config.node.run_as.is_none());
    let EndpointSource::File { path } = &config.endpoints else { unreachable!("{:?}", config.endpoints) };
    assert_eq!(path, Path::new("/etc/nova/endpoints.yaml"));
    assert_eq!(config.policy.store, Path::new("/var/lib/nova/store"));
    assert_eq!(config.policy.stale_grace, Duration::from_secs(86_400));
    assert!(matches!(config.identity, IdentityConfig::Dev { ca_fd: None, bundle_out: None }));
    assert_eq!((config.guests.vsock, config.guests.host_port, config.guests.guest_port), (false, 15_001, 15_080));
    assert!(matches!(config.routes, RouteConfig::External));
    assert!(config.audit.required && config.lab_destinations.is_empty() && config.resolver.servers.is_empty());
}

#[test]
fn every_key_is_understood() {
    let text = r#"
[node]
id = "node-1"
mode = "production"
instance = "blue"
slot = 1
workers = 2
uid = 64000
gid = 64000
[endpoints]
control = "/run/nova/novalet.sock"
novalet_uid = 7
[policy]
bundle = "b"
keys = "k"
key_id = "release 2026"
store = "s"
stale_grace = "90m"
min_serial = 9
[identity]
source = "files"
dir = "certs"
trust_domain = "prod.example"
[guests]
root = "g"
vsock = true
host_port = 16001
guest_port = 16080
[routes]
mode = "managed"
subnet = "10.64.3.0/24"
[resolver]
servers = ["10.0.0.2", "[fd00::1]:5353"]
bind = "10.0.0.9"
timeout = "750ms"
hosts = { "API.example.com." = "10.1.1.1", two = ["10.1.1.2", "fd00::2"] }
[audit]
file = "a"
required = false
opa_file = "o"
denials_per_second = 7
[admin]
socket = "/run/nova/admin.sock"
"#;
    let config = parse(text).expect("no mistakes");
    assert_eq!((config.node.instance.as_str(), config.node.slot, config.node.workers), ("blue", 1, 2));
    assert_eq!(config.node.run_as, Some((64_000, 64_000)));
    assert!(matches!(config.endpoints, EndpointSource::Control { novalet_uid: 7, .. }));
    assert_eq!(config.policy.key_id.as_deref(), Some("release 2026"));
    let IdentityConfig::Files { trust_domain, .. } = &config.identity else { unreachable!("{:?}", config.identity) };
    assert_eq!(trust_domain, "prod.example");
    assert_eq!((config.guests.vsock, config.guests.host_port), (true, 16_001));
    assert!(matches!(config.routes, RouteConfig::Managed { .. }));
    assert_eq!(config.resolver.servers[0], SocketAddr::from(([10, 0, 0, 2], 53)));
    assert_eq!(config.resolver.timeout, Duration::from_millis(750));
    let one = ("api.example.com".to_owned(), vec![IpAddr::V4(Ipv4Addr::new(10, 1, 1, 1))]);
    assert!(config.resolver.hosts.contains(&one), "{:?}", config.resolver.hosts);
    assert!(!config.audit.required && config.audit.opa_file.is_some_and(|file| file.ends_with("o")));
    assert_eq!((config.audit.denials_per_second, config.policy.min_serial), (7, 9));
}

#[test]
fn the_decision_log_in_opas_form_is_another_file_and_a_budget_is_a_number() {
    let mistakes = parse(&GOOD.replace("[audit]", "[audit]\nopa_file = \"./audit.jsonl\"\ndenials_per_second = 0"));
    let mistakes = mistakes.expect_err("two mistakes").to_string();
    assert!(mistakes.contains("audit.denials_per_second") && mistakes.contains("1000000"), "{mistakes}");
    assert!(mistakes.contains("audit.opa_file: is the audit log itself"), "{mistakes}");
    let config = parse(GOOD).expect("no mistakes");
    assert!(config.audit.opa_file.is_none() && config.audit.denials_per_second > 0 && config.policy.min_serial == 0);
}

// covers: C2f
// covers: C1b
#[test]
fn lists_of_tables_are_read_entry_by_entry_with_their_own_mistakes() {
    let with = |identity: &str, more: &str| {
        format!("{}{more}", GOOD.replace("source = \"dev\"", &format!("source = \"dev\"\n{identity}")))
    };
    for (bad, wanted) in [
        ("federated = [{trust_domain = \"dev.invalid\", bundle = \"a.pem\"}]", "belongs to the dev identity source"),
        ("federated = [{trust_domain = \"a.test\"}]", "says no bundle"),
        ("federated = [{trust_domain = \"a.test\", bundle = \"a.pem\", nmae = \"a\"}]", "has no key \"nmae\""),
        (
            "federated = [{trust_domain = \"a.test\", bundle = \"a.pem\", name = \"spiffe\"}]",
            "not the name of an external",
        ),
        ("federated = [\"a.test\"]", "is not a table"),
        (
            "federated = [{trust_domain = \"a.test\", bundle = \"a\"}, {trust_domain = \"a.test\", bundle = \"b\", name = \"b\"}]",
            "there twice",
        ),
    ] {
        let got = mistakes(&with(bad, ""));
        assert!(got.len() == 1 && got[0].contains("identity.federated") && got[0].contains(wanted), "{bad}: {got:?}");
    }
    for (bad, wanted) in [
        ("[certificates]\nname = \"a\"\n", "must be a list of tables"),
        ("[[certificates]]\nname = \"a\"\nchain = \"a.crt\"\n", "certificates.key: is missing"),
        ("[[certificates]]\nname = \"A\"\nchain = \"a.crt\"\nkey = \"a.key\"\n", "certificates.name"),
        (
            "[[certificates]]\nname = \"a\"\nchian = \"a.crt\"\nchain = \"a.crt\"\nkey = \"a.key\"\n",
            "did you mean chain?",
        ),
        ("[interception]\nchain = \"a.pem\"\n", "stands alone"),
        ("[interception]\nkey = \"a.key\"\n", "stands alone"),
    ] {
        let got = mistakes(&with("", bad));
        assert!(got.len() == 1 && got[0].contains(wanted), "{bad}: {got:?}");
    }
    let good = with(
        "federated = [{trust_domain = \"a.test\", bundle = \"a.pem\"}]\ncrls = \"crls\"\npeer_grace = \"5s\"",
        "[[certificates]]\nname = \"a\"\nchain = \"a.crt\"\nkey = \"a.key\"\n[[certificates]]\nname = \"b\"\nchain = \"b\"\nkey = \"b\"\n",
    );
    let config = parse(&good).expect("no mistake");
    assert_eq!(config.trust.federated[0].name, "a-test");
    assert_eq!(config.trust.federated[0].bundle, Path::new("/etc/nova/a.pem"));
    assert_eq!(config.trust.crls, [Path::new("/etc/nova/crls")]);
    assert_eq!(
        (config.trust.peer_grace, config.trust.crl_grace),
        (Duration::from_secs(5), Duration::from_secs(86_400))
    );
    assert_eq!(config.certificates.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
}

// covers: C6c
#[test]
fn an_issuer_of_tokens_must_say_whom_they_are_for_and_how_they_are_signed() {
    let good = "[[tokens]]\nissuer = \"https://i.test\"\naudiences = [\"a\"]\njwks = \"jwks.json\"\nalgorithms = [\"ES256\"]\n";
    let with = |text: &str| mistakes(&format!("{GOOD}{text}"));
    let production = |text: &str| {
        let text = format!(
            "{}{text}",
            GOOD.replace("mode = \"dev\"\n", "")
                .replace("source = \"dev\"", "source = \"files\"\ndir = \"d\"\ntrust_domain = \"a.test\"")
        );
        mistakes(&text)
    };
    for (from, to, wanted) in [
        ("audiences = [\"a\"]\n", "", "tokens.audiences: is missing"),
        ("[\"a\"]", "[]", "no token would be for us"),
        ("algorithms = [\"ES256\"]\n", "", "tokens.algorithms: is missing"),
        ("ES256", "HS256", "no algorithm with a public key"),
        ("ES256", "none", "no algorithm with a public key"),
        ("jwks = \"jwks.json\"\n", "", "tokens.jwks: is missing"),
        ("jwks = ", "jwks_url = \"https://i.test/k\"\njwks = ", "stands beside jwks_url"),
        ("algorithms", "refresh = \"1s\"\nalgorithms", "has no meaning without jwks_url"),
        ("algorithms", "leeway = \"6m\"\nalgorithms", "longer than 5 minutes"),
        ("jwks = \"jwks.json\"", "jwks_url = \"http://i.test/k\"", "plaintext to another machine"),
    ] {
        let got = with(&good.replace(from, to));
        assert!(got.len() == 1 && got[0].contains(wanted), "{wanted}: {got:?}");
    }
    let got = production(&good.replace("jwks = \"jwks.json\"", "jwks_url = \"http://127.0.0.1/k\""));
    assert!(got.len() == 1 && got[0].contains("is plaintext"), "{got:?}");
    let got = with(&format!("{good}{good}"));
    assert!(got.len() == 1 && got[0].contains("there twice"), "{got:?}");
    let config = parse(&format!("{GOOD}{good}")).expect("no mistake");
    assert_eq!(
        (config.tokens[0].audiences.as_slice(), config.tokens[0].leeway),
        (&["a".to_owned()][..], Duration::from_secs(30))
    );
}

// covers: D11e
#[test]
fn proxies_and_their_use_are_checked_and_a_password_in_an_address_is_not_repeated() {
    let text = format!(
        "{GOOD}[egress]\nproxy = \"nobody\"\ndirect = [\"10.0.0.1/8\", \"a b\"]\n\
         [[proxies]]\nname = \"corp\"\nurl = \"http://user:s3cret@proxy:1\"\n\
         [[proxies]]\nname = \"plain\"\nurl = \"http://proxy.test:3128\"\nca = \"ca.pem\"\n\
         [[proxies]]\nname = \"plain\"\nurl = \"https://proxy.test\"\n"
    );
    let file = "/etc/nova/supervisor.toml";
    let all = mistakes(&text);
    for (key, problem) in [
        ("egress.proxy", "no [[proxies]] has the name"),
        ("egress.direct", "has host bits set"),
        ("egress.direct", "is no host and no network"),
        ("proxies.url", "holds a user"),
        ("proxies.ca", "has no meaning without https://"),
        ("proxies.name", "is there twice"),
        ("proxies.url", "does not name a host and a port"),
    ] {
        let fits = |line: &&String| line.starts_with(file) && line.contains(key) && line.contains(problem);
        assert_eq!(all.iter().filter(fits).count(), 1, "{key}: {problem} in {all:#?}");
    }
    assert!(all.len() == 7 && !all.iter().any(|line| line.contains("s3cret")), "{all:#?}");
    assert!(mistakes(&format!("{GOOD}[egress]\ndirect = [\"a.test\"]\n"))[0].contains("without proxy"));
    let good = "[egress]\ntls12 = false\nproxy = \"corp\"\ndirect = [\"a.test\", \"*.b.test\", \"10.0.0.0/8\"]\n\
                [[proxies]]\nname = \"corp\"\nurl = \"https://Proxy.test:3129/\"\nca = \"ca.pem\"\ncredential = \"login\"\n";
    let config = parse(&format!("{GOOD}{good}")).expect("no mistakes").egress;
    assert!(!config.tls12 && config.proxy.as_deref() == Some("corp"));
    let proxy = &config.proxies[0];
    assert!(proxy.url.tls && proxy.url.port == 3129 && proxy.url.host.as_str() == "proxy.test");
    assert!(proxy.credential.as_deref() == Some(Path::new("/etc/nova/login")));
    let is_direct = |host| {
        let host = nova_policy::host::Host::parse(host).expect("a host");
        config.direct.iter().any(|direct| direct.covers(&host))
    };
    assert_eq!(["a.test", "x.b.test", "10.1.2.3"].map(is_direct), [true; 3]);
    assert_eq!(["x.a.test", "b.test", "ab.test", "11.0.0.1"].map(is_direct), [false; 4]);
}

// covers: A12
#[test]
fn a_name_server_on_port_0_and_routes_for_loopback_are_mistakes() {
    let text = format!(
        "{GOOD}[resolver]\nservers = [\"127.0.0.1:0\"]\n[routes]\nmode = \"managed\"\nsubnet = \"127.0.0.0/8\"\n"
    );
    let lines = mistakes(&text);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("resolver.servers: \"127.0.0.1:0\" is not an address"), "{lines:?}");
    assert!(lines[1].contains("routes.subnet: is the machine's own loopback network"), "{lines:?}");
}

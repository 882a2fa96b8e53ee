use super::*;

const ALL: [Purpose; 3] = [Purpose::Workload, Purpose::Literal, Purpose::External];

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Every purpose is refused every one of these, for this reason.
fn refused(why: Forbidden, addresses: &[&str]) {
    for text in addresses {
        for purpose in ALL {
            assert_eq!(AddressGuard::default().check(ip(text), purpose), Err(why), "{text} as {purpose:?}");
        }
    }
}

/// Every one of these is only for workloads and for rules that name the range.
fn private(addresses: &[&str]) {
    for text in addresses {
        let check = |purpose| AddressGuard::default().check(ip(text), purpose);
        assert_eq!(check(Purpose::External), Err(Forbidden::Private), "{text}");
        assert_eq!((check(Purpose::Workload), check(Purpose::Literal)), (Ok(()), Ok(())), "{text}");
    }
}

fn public(addresses: &[&str]) {
    for text in addresses {
        for purpose in ALL {
            assert_eq!(AddressGuard::default().check(ip(text), purpose), Ok(()), "{text} as {purpose:?}");
        }
    }
}

// covers: A7c
// covers: D7.1
#[test]
fn loopback_and_the_unspecified_addresses_are_never_dialled() {
    refused(Forbidden::Unspecified, &["0.0.0.0", "0.1.2.3", "0.255.255.255", "::"]);
    refused(Forbidden::Loopback, &["127.0.0.1", "127.1.2.3", "127.255.255.254", "::1"]);
}

// covers: A7c (F-DN04)
// covers: D7.2
#[test]
fn private_ranges_are_for_workloads_and_for_rules_that_name_them() {
    private(&["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"]);
    private(&["100.64.0.1", "100.127.255.255", "fc00::1", "fd00::1", "fdff:ffff::1"]);
    public(&["9.255.255.255", "11.0.0.0", "172.15.0.1", "172.32.0.1", "192.167.0.1", "100.63.0.1", "100.128.0.1"]);
}

// covers: A7c
// covers: D7.3
#[test]
fn link_local_addresses_and_metadata_services_are_never_dialled() {
    refused(Forbidden::LinkLocal, &["169.254.0.1", "169.254.169.254", "169.254.170.2", "169.254.255.255"]);
    refused(Forbidden::LinkLocal, &["fe80::1", "fe81::1", "febf::1", "fec0::1", "feff::1"]);
    refused(Forbidden::Metadata, &["168.63.129.16", "100.100.100.200", "::ffff:168.63.129.16", "64:ff9b::a83f:8110"]);
    refused(Forbidden::Metadata, &["fd00:ec2::254", "fd20:ce::254", "fd00:42::42", "fd00:c1::a9fe:a9fe"]);
}

// covers: A7c
// covers: D7.4
#[test]
fn multicast_broadcast_and_the_range_for_future_use_are_never_dialled() {
    refused(Forbidden::Multicast, &["224.0.0.1", "239.255.255.250", "255.255.255.255", "ff02::1", "ff0e::1"]);
    refused(Forbidden::Reserved, &["240.0.0.1", "250.0.0.1", "255.255.255.254"]);
}

// covers: A7c
// covers: D7.5
#[test]
fn ranges_of_documents_benchmarks_and_protocols_are_never_dialled() {
    refused(
        Forbidden::Reserved,
        &["192.0.0.8", "192.0.0.170", "192.0.0.192", "192.88.99.1", "198.18.0.1", "198.19.9.9"],
    );
    refused(Forbidden::Reserved, &["192.0.2.1", "198.51.100.7", "203.0.113.9"]);
    refused(Forbidden::Reserved, &["2001:db8::1", "3fff::1", "3fff:fff::1", "2001:2::1", "2001:10::1", "2001:2f::1"]);
    refused(Forbidden::Reserved, &["100::1", "100:0:0:1::1", "5f00::1", "4000::1", "200::1"]);
}

// covers: D7.6
#[test]
fn a_mapped_address_is_judged_by_the_address_in_it_in_either_spelling() {
    refused(Forbidden::Loopback, &["::ffff:127.0.0.1", "::ffff:7f00:1"]);
    refused(Forbidden::LinkLocal, &["::ffff:169.254.169.254", "::ffff:a9fe:a9fe"]);
    private(&["::ffff:10.0.0.1", "::ffff:a00:1"]);
    public(&["::ffff:1.1.1.1", "::ffff:101:101"]);
}

// covers: D7.7
#[test]
fn a_compatible_address_is_judged_by_the_address_in_it() {
    refused(Forbidden::Loopback, &["::127.0.0.1"]);
    refused(Forbidden::LinkLocal, &["::a9fe:a9fe"]);
    refused(Forbidden::Unspecified, &["::0.0.0.2"]);
    private(&["::10.0.0.1"]);
}

// covers: D7.8
// F-DN03
#[test]
fn nat64_is_judged_by_the_address_in_it_and_a_local_prefix_only_where_it_is_configured() {
    refused(Forbidden::LinkLocal, &["64:ff9b::a9fe:a9fe", "64:ff9b::169.254.169.254"]);
    private(&["64:ff9b::10.0.0.1"]);
    public(&["64:ff9b::808:808"]);
    refused(Forbidden::Tunnel, &["64:ff9b:1::1", "64:ff9b:1::808:808", "64:ff9b:1:ffff::a9fe:a9fe"]);
    refused(Forbidden::Reserved, &["64:ff9b:2::808:808"]);
    let prefixes = ["64:ff9b:1:2::/96", "2a00:1:2::/96"].map(|prefix| prefix.parse().expect("a prefix"));
    let guard = AddressGuard::new(Vec::new(), prefixes.into());
    for prefix in ["64:ff9b:1:2", "2a00:1:2"] {
        let check = |inside: &str| guard.check(ip(&format!("{prefix}::{inside}")), Purpose::External);
        assert_eq!(check("808:808"), Ok(()));
        assert_eq!(check("a9fe:a9fe"), Err(Forbidden::LinkLocal));
        assert_eq!(check("a00:1"), Err(Forbidden::Private));
    }
    assert_eq!(guard.check(ip("64:ff9b:1::808:808"), Purpose::External), Err(Forbidden::Tunnel), "another prefix");
}

// covers: D7.9
#[test]
fn a_6to4_address_is_judged_by_the_address_in_it() {
    refused(Forbidden::Loopback, &["2002:7f00:1::1"]);
    refused(Forbidden::LinkLocal, &["2002:a9fe:a9fe::", "2002:a9fe:a9fe::1"]);
    private(&["2002:a00:1::"]);
    public(&["2002:808:808::1"]);
}

// covers: D7.10
#[test]
fn a_teredo_address_hides_where_it_leads_and_is_never_dialled() {
    refused(Forbidden::Tunnel, &["2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2"]);
}

// covers: D7.11
#[test]
fn an_isatap_address_is_never_dialled() {
    refused(Forbidden::Tunnel, &["2606:4700::5efe:a00:1", "2606:4700::200:5efe:a00:1", "fd00::5efe:7f00:1"]);
}

#[test]
fn the_internet_is_reachable() {
    public(&["1.1.1.1", "8.8.8.8", "2606:4700::1111", "2a00:1450:4007:816::200e"]);
}

#[test]
fn a_lab_opens_only_its_ranges() {
    let guard = AddressGuard::new(vec!["127.0.0.0/8".parse().expect("a network")], Vec::new());
    assert!(guard.allows(ip("127.0.0.1"), Purpose::External));
    assert!(!guard.allows(ip("169.254.169.254"), Purpose::External));
    assert!(!guard.allows(ip("::ffff:127.0.0.1"), Purpose::External));
}

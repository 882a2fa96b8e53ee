//! One value at a time: from TOML to a typed one, or what is wrong with it and what to write instead.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};
use nova_policy::workloads::DEV_TRUST_DOMAIN;
use toml::de::DeValue;

use super::Mode;

/// What is wrong with a value, without its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) problem: String,
    pub(super) remedy: String,
}

impl Mistake {
    pub(super) fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { problem: problem.into(), remedy: remedy.into() }
    }
}

type Parsed<T> = Result<T, Mistake>;

/// Longest path that fits `sun_path` with its final zero.
const MAX_SOCKET_PATH: usize = 107;

fn text<'v>(value: &'v DeValue<'_>) -> Parsed<&'v str> {
    let text =
        value.as_str().ok_or_else(|| Mistake::new(format!("{} is not a text", kind(value)), "put it in quotes"))?;
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(Mistake::new("is empty or holds control characters", "write a text of visible characters"));
    }
    Ok(text)
}

fn kind(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(number) => number.to_string(),
        DeValue::Boolean(truth) => truth.to_string(),
        other => format!("a value of type {}", other.type_str()),
    }
}

pub(super) fn flag(value: &DeValue<'_>) -> Parsed<bool> {
    value.as_bool().ok_or_else(|| Mistake::new("is not true or false", "write true or false, without quotes"))
}

/// A whole number in a range.
pub(super) fn number(range: std::ops::RangeInclusive<u64>) -> impl Fn(&DeValue<'_>) -> Parsed<u64> {
    move |value| {
        let remedy = || format!("write a whole number from {} to {}, without quotes", range.start(), range.end());
        let integer = value.as_integer().ok_or_else(|| Mistake::new("is not a whole number", remedy()))?;
        match u64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => Err(Mistake::new(format!("{} is out of range", integer.as_str()), remedy())),
        }
    }
}

/// A 32-bit number in a range: ids and ports.
pub(super) fn id(range: std::ops::RangeInclusive<u32>) -> impl Fn(&DeValue<'_>) -> Parsed<u32> {
    let wide = number(u64::from(*range.start())..=u64::from(*range.end()));
    move |value| {
        let number = wide(value)?;
        u32::try_from(number).map_err(|_| Mistake::new("is out of range", "write a smaller number"))
    }
}

/// A name for scopes, labels and file names: what DNS names are made of.
pub(super) fn name(value: &DeValue<'_>) -> Parsed<String> {
    let text = text(value)?;
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let ends = text.starts_with(['-', '.']) || text.ends_with(['-', '.']);
    if text.len() > 253 || !text.bytes().all(plain) || ends {
        return Err(Mistake::new(
            format!("{text:?} is not a name"),
            "use 1 to 253 of a-z, 0-9, '-' and '.', with a letter or digit at both ends",
        ));
    }
    Ok(text.to_owned())
}

/// The trust domain of certificates from files; never that of the dev source, which anybody can issue for.
pub(super) fn trust_domain(value: &DeValue<'_>) -> Parsed<String> {
    let text = text(value)?;
    if text == DEV_TRUST_DOMAIN {
        let remedy = "write the trust domain of your own CA, or set source = \"dev\" in a lab";
        return Err(Mistake::new(format!("{text:?} belongs to the dev identity source"), remedy));
    }
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'_');
    if (1..=255).contains(&text.len()) && text.bytes().all(fits) {
        return Ok(text.to_owned());
    }
    Err(Mistake::new(format!("{text:?} is not a trust domain"), "use 1 to 255 of a-z, 0-9, '.', '-' and '_'"))
}

/// A text of visible characters.
pub(super) fn plain_text(value: &DeValue<'_>) -> Parsed<String> {
    text(value).map(str::to_owned)
}

/// An algorithm with a public key. With a shared key, whoever can check tokens can make them.
pub(super) fn algorithm(value: &DeValue<'_>) -> Parsed<jsonwebtoken::Algorithm> {
    use jsonwebtoken::{Algorithm, AlgorithmFamily};
    let remedy = "write some of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA";
    let text = text(value)?;
    let known: Option<Algorithm> = text.parse().ok();
    let public = known.filter(|algorithm| algorithm.family() != AlgorithmFamily::Hmac);
    public.ok_or_else(|| Mistake::new(format!("{text:?} is no algorithm with a public key"), remedy))
}

/// Another trust domain: an inline table.
pub(super) fn federated(value: &DeValue<'_>) -> Parsed<super::FederatedConfig> {
    let remedy = "write {trust_domain = \"partner.example\", bundle = \"partner.pem\", name = \"partner\"}";
    let table = value.as_table().ok_or_else(|| Mistake::new("is not a table", remedy))?;
    let known = ["trust_domain", "bundle", "name"];
    if let Some((key, _)) = table.iter().find(|(key, _)| !known.contains(&key.get_ref().as_ref())) {
        return Err(Mistake::new(format!("has no key {:?}", key.get_ref()), remedy));
    }
    let need = |key: &str| {
        let found = table.get(key).map(toml::Spanned::get_ref);
        found.ok_or_else(|| Mistake::new(format!("says no {key}"), remedy))
    };
    let trust_domain = self::trust_domain(need("trust_domain")?)?;
    let bundle = path(need("bundle")?)?;
    let name = match table.get("name") {
        Some(value) => text(value.get_ref())?.to_owned(),
        None => trust_domain.replace(['.', '_'], "-"),
    };
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !(1..=63).contains(&name.len()) || !name.bytes().all(fits) || ["spiffe", "nova"].contains(&name.as_str()) {
        return Err(Mistake::new(
            format!("{name:?} is not the name of an external CA"),
            "use 1 to 63 of a-z, 0-9 and '-'",
        ));
    }
    Ok(super::FederatedConfig { trust_domain, bundle, name })
}

/// The address of a bundle server.
pub(super) fn bundle_url(value: &DeValue<'_>) -> Parsed<super::url::BundleUrl> {
    let remedy = "write https://host/path, http://127.0.0.1:port/path or unix:///run/x.sock:/path";
    let text = text(value)?;
    super::url::parse(text).map_err(|problem| Mistake::new(format!("{text:?} {problem}"), remedy))
}

pub(super) fn key_id(value: &DeValue<'_>) -> Parsed<String> {
    text(value).map(str::to_owned)
}

pub(super) fn mode(value: &DeValue<'_>) -> Parsed<Mode> {
    match text(value)? {
        "dev" => Ok(Mode::Dev),
        "production" => Ok(Mode::Production),
        other => Err(Mistake::new(format!("{other:?} is not a mode"), "write \"production\" or \"dev\"")),
    }
}

/// One of a few words.
pub(super) fn word(words: &'static [&'static str]) -> impl Fn(&DeValue<'_>) -> Parsed<&'static str> {
    move |value| {
        let text = text(value)?;
        let remedy = || format!("write one of: {}", words.join(", "));
        words
            .iter()
            .find(|word| **word == text)
            .copied()
            .ok_or_else(|| Mistake::new(format!("{text:?} is not known here"), remedy()))
    }
}

pub(super) fn path(value: &DeValue<'_>) -> Parsed<PathBuf> {
    text(value).map(PathBuf::from)
}

/// The length of a socket's path is checked after it was made absolute.
pub(super) fn fits_socket(path: &std::path::Path) -> Parsed<()> {
    let bytes = path.as_os_str().as_bytes().len();
    if bytes > MAX_SOCKET_PATH {
        let problem = format!("{} has {bytes} bytes, a socket's path may have {MAX_SOCKET_PATH}", path.display());
        return Err(Mistake::new(problem, "choose a shorter folder, such as one under /run"));
    }
    Ok(())
}

pub(super) fn duration(value: &DeValue<'_>) -> Parsed<Duration> {
    let remedy = "write a number and a unit in quotes: \"500ms\", \"10s\", \"15m\", \"24h\" or \"7d\"";
    let text = value.as_str().ok_or_else(|| Mistake::new(format!("{} is not a duration", kind(value)), remedy))?;
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(86_400_000),
        _ => None,
    };
    let millis = factor.and_then(|factor: u64| number.parse::<u64>().ok()?.checked_mul(factor));
    // A year is more than any deadline here, and keeps every later sum of durations far from overflow.
    match millis.filter(|millis| (1..=365 * 86_400_000).contains(millis)) {
        Some(millis) => Ok(Duration::from_millis(millis)),
        None => Err(Mistake::new(format!("{text:?} is not a duration between 1ms and 365d"), remedy)),
    }
}

pub(super) fn ip(value: &DeValue<'_>) -> Parsed<IpAddr> {
    let text = text(value)?;
    text.parse().map_err(|_| Mistake::new(format!("{text:?} is not an IP address"), "write one such as \"10.0.0.2\""))
}

/// A DNS server: an address, with port 53 unless it says otherwise.
pub(super) fn server(value: &DeValue<'_>) -> Parsed<SocketAddr> {
    let text = text(value)?;
    let with_port = text.parse().or_else(|_| text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 53)));
    // Nobody can be asked on port 0.
    with_port.ok().filter(|server| server.port() > 0).ok_or_else(|| {
        Mistake::new(format!("{text:?} is not an address"), "write \"10.0.0.2\", \"10.0.0.2:53\" or \"[fd00::1]:53\"")
    })
}

pub(super) fn subnet(value: &DeValue<'_>) -> Parsed<IpNet> {
    let text = text(value)?;
    let remedy = "write a network such as \"10.64.3.0/24\"";
    let net: IpNet = text.parse().map_err(|_| Mistake::new(format!("{text:?} is not a network"), remedy))?;
    if net.trunc() != net {
        return Err(Mistake::new(format!("{text:?} has host bits set"), format!("write \"{}\"", net.trunc())));
    }
    Ok(net)
}

/// One network, or one of each family.
pub(super) fn subnets(value: &DeValue<'_>) -> Parsed<Vec<IpNet>> {
    let nets = match value.as_array() {
        Some(items) => items.iter().map(|item| subnet(item.get_ref())).collect::<Parsed<Vec<_>>>()?,
        None => vec![subnet(value)?],
    };
    match nets.as_slice() {
        [_] | [IpNet::V4(_), IpNet::V6(_)] | [IpNet::V6(_), IpNet::V4(_)] => Ok(nets),
        _ => Err(Mistake::new(
            "must be one network, or one of each family",
            "write \"10.64.3.0/24\" or [\"10.64.3.0/24\", \"fd00:64::/64\"]",
        )),
    }
}

/// A NAT64 prefix whose last 32 bits are the IPv4 address.
pub(super) fn nat64(value: &DeValue<'_>) -> Parsed<Ipv6Net> {
    match subnet(value)? {
        IpNet::V6(prefix) if prefix.prefix_len() == 96 => Ok(prefix),
        other => {
            Err(Mistake::new(format!("{other} is no IPv6 prefix of 96 bits"), "write one such as \"64:ff9b:1:2::/96\""))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toml_value(text: &str) -> DeValue<'_> {
        DeValue::parse(text).expect("a TOML value").into_inner()
    }

    #[test]
    fn durations_without_a_unit_or_out_of_range_are_refused() {
        for bad in
            ["10", "\"10\"", "\"\"", "\"s\"", "\"-1s\"", "\"1 s\"", "\"0s\"", "\"366d\"", "\"99999999999999999999s\""]
        {
            assert!(duration(&toml_value(bad)).is_err(), "{bad}");
        }
        assert_eq!(duration(&toml_value("\"24h\"")), Ok(Duration::from_secs(86_400)));
        assert_eq!(duration(&toml_value("\"500ms\"")), Ok(Duration::from_millis(500)));
    }

    #[test]
    fn a_network_with_host_bits_is_refused_with_the_network_it_means() {
        for bad in ["[]", "[\"10.0.0.0/8\", \"10.1.0.0/16\"]", "[\"10.0.0.0/8\", \"fd00::/8\", \"fe00::/8\"]", "7"] {
            assert!(subnets(&toml_value(bad)).is_err(), "{bad}");
        }
        assert_eq!(subnets(&toml_value("[\"fd00::/64\", \"10.0.0.0/8\"]")).map(|nets| nets.len()).ok(), Some(2));
        let mistake = subnet(&toml_value("\"10.64.3.7/24\"")).expect_err("host bits");
        assert!(mistake.remedy.contains("10.64.3.0/24"), "{mistake:?}");
    }

    #[test]
    fn numbers_keep_to_their_range_in_every_base() {
        for bad in ["-1", "65536", "\"8\"", "1.5", "true", "0x10000", "99999999999999999999999"] {
            assert!(id(0..=65535)(&toml_value(bad)).is_err(), "{bad}");
        }
        assert_eq!(id(0..=65535)(&toml_value("0x10")), Ok(16));
        assert_eq!(id(0..=65535)(&toml_value("1_000")), Ok(1000));
    }
}

//! The relay's configuration. It arrives on standard input, so neither arguments nor environment nor a file that the app
//! could read ever hold the boot token.

use std::io::Read;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use nova_proto::ids::BootToken;
use nova_proto::link::MIN_GUEST_PORT;
use serde::{Deserialize, Serialize};

use crate::config::{
    ConfigError, Dependency, EgressSocket, Ingress, Link, Mistakes, is_host_name, is_socket_name, token_hex,
};

/// Longest configuration that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// What the relay carries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelayConfig {
    /// Goes into every hello and must be in every hello received.
    #[serde(with = "token_hex")]
    pub boot_token: BootToken,
    /// The way to the host.
    pub link: Link,
    /// Where the supervisor's instances listen, slot A first.
    pub host_ports: Vec<u32>,
    /// Where the relay listens for the supervisor.
    pub guest_port: u32,
    /// Whether the relay's own connections use records, because the link loses half-close.
    pub framed: bool,
    /// Port of the app's HTTP proxy and SOCKS5 on 127.0.0.1.
    pub proxy_port: u16,
    /// What the supervisor may reach.
    #[serde(default)]
    pub ingress: Vec<Ingress>,
    /// Folder of the ingress sockets.
    #[serde(default = "default_socket_dir")]
    pub socket_dir: PathBuf,
    /// Fixed dependencies.
    #[serde(default)]
    pub dependencies: Vec<Dependency>,
    /// Connections in all, both directions.
    #[serde(default = "default_max_connections")]
    pub max_connections: usize,
    /// Egress sockets, in the order in which nova-init hands them over.
    #[serde(default)]
    pub egress_sockets: Vec<EgressSocket>,
    /// The workload's address, if nova-init hands over the device that the app's pings go to.
    #[serde(default)]
    pub ping_from: Option<Ipv4Addr>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Standard input broke.
    #[error("cannot read the configuration from standard input: {0}")]
    Io(#[from] std::io::Error),
    /// Not JSON of this shape.
    #[error(
        "standard input does not hold a relay configuration: {0}; nova-init writes it, do not start the relay by hand"
    )]
    Json(#[from] serde_json::Error),
    /// Values that do not fit.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
}

pub(crate) fn default_socket_dir() -> PathBuf {
    PathBuf::from("/run/nova/sockets")
}

pub(crate) fn default_max_connections() -> usize {
    900
}

impl RelayConfig {
    /// Reads to the end and validates.
    ///
    /// # Errors
    /// When the text is not a valid configuration.
    pub fn read(source: impl Read) -> Result<Self, ReadError> {
        let mut text = Vec::new();
        source.take(LONGEST).read_to_end(&mut text)?;
        let config: Self = serde_json::from_slice(&text)?;
        config.validate()?;
        Ok(config)
    }

    /// Checks every value.
    ///
    /// # Errors
    /// Lists all mistakes.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut mistakes = Mistakes::default();
        mistakes
            .unless(!self.host_ports.is_empty(), || "host_ports is empty: give the supervisor's port, 15001".into());
        mistakes.unless(self.guest_port >= MIN_GUEST_PORT, || {
            format!(
                "guest_port {} is below {MIN_GUEST_PORT}: the supervisor does not dial it, use 15080",
                self.guest_port
            )
        });
        mistakes.unless(self.proxy_port != 0, || "proxy_port is 0: use 3128".into());
        mistakes.unless((1..=60_000).contains(&self.max_connections), || "max_connections must be 1 to 60000".into());
        for ingress in &self.ingress {
            self.check_ingress(ingress, &mut mistakes);
        }
        for (index, dependency) in self.dependencies.iter().enumerate() {
            check_dependency(dependency, &mut mistakes);
            let twice = self.dependencies[..index].iter().any(|other| other.listen_on() == dependency.listen_on());
            mistakes.unless(!twice, || {
                format!(
                    "dependency {} shares {} with another: give it its own guest_ip",
                    dependency.host,
                    dependency.listen_on()
                )
            });
        }
        mistakes.finish()
    }

    fn check_ingress(&self, ingress: &Ingress, mistakes: &mut Mistakes) {
        match ingress {
            Ingress::Tcp(port) => {
                mistakes.unless(*port != 0, || "ingress has tcp port 0".into());
                mistakes
                    .unless(*port != self.proxy_port, || format!("ingress port {port} is the relay's own proxy_port"));
            }
            Ingress::Socket(name) => mistakes.unless(is_socket_name(name), || {
                format!("ingress socket {name:?} must be one file name of printable ASCII")
            }),
        }
    }

    /// Lowest port below 1024 that the relay or the app listens on.
    #[must_use]
    pub fn lowest_privileged_port(&self) -> Option<u16> {
        let tcp = self.ingress.iter().filter_map(|ingress| match ingress {
            Ingress::Tcp(port) => Some(*port),
            Ingress::Socket(_) => None,
        });
        self.dependencies.iter().map(|dependency| dependency.port).chain(tcp).filter(|port| *port < 1024).min()
    }
}

fn check_dependency(dependency: &Dependency, mistakes: &mut Mistakes) {
    let Dependency { host, port, guest_ip, socket: _ } = dependency;
    mistakes.unless(is_host_name(host) && host.len() <= 240, || format!("dependency host {host:?} is not a host name"));
    mistakes.unless(*port != 0, || format!("dependency {host:?} has port 0"));
    mistakes
        .unless(guest_ip.is_loopback(), || format!("dependency {host:?}: guest_ip {guest_ip} is not in 127.0.0.0/8"));
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn json(change: impl FnOnce(&mut serde_json::Value)) -> String {
        let mut value = serde_json::json!({
            "boot_token": "000102030405060708090a0b0c0d0e0f", "link": {"unix": {"dir": "/x"}}, "host_ports": [15001],
            "guest_port": 15080, "framed": true, "proxy_port": 3128, "ingress": [{"tcp": 8080}, {"socket": "app.sock"}],
            "dependencies": [{"host": "db.t.nova", "port": 443, "guest_ip": "127.0.1.1"}],
        });
        change(&mut value);
        value.to_string()
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let text = json(|value| {
            value["host_ports"] = serde_json::json!([]);
            value["guest_port"] = 1024.into();
            value["ingress"] = serde_json::json!([{"tcp": 3128}, {"socket": "../x"}]);
            value["dependencies"] = serde_json::json!([
                {"host": "a b", "port": 1, "guest_ip": "10.0.0.1"}, {"host": "c", "port": 1, "guest_ip": "10.0.0.1"}]);
        });
        let error = RelayConfig::read(text.as_bytes()).expect_err("must be refused").to_string();
        assert_eq!(error.lines().count(), 1 + 8, "{error}");
    }

    #[test]
    fn unknown_fields_are_refused_at_every_level() {
        for change in [
            |value: &mut serde_json::Value| value["x"] = 1.into(),
            |value: &mut serde_json::Value| value["link"]["unix"]["x"] = 1.into(),
            |value: &mut serde_json::Value| value["dependencies"][0]["x"] = 1.into(),
            |value: &mut serde_json::Value| value["ingress"][0] = serde_json::json!({"udp": 1}),
        ] {
            assert!(matches!(RelayConfig::read(json(change).as_bytes()), Err(ReadError::Json(_))));
        }
    }

    #[test]
    fn a_good_one_round_trips_and_hides_its_token() {
        let config = RelayConfig::read(json(|_| ()).as_bytes()).expect("valid");
        assert_eq!(config.lowest_privileged_port(), Some(443));
        assert!(!format!("{config:?}").contains("000102"));
        let again = serde_json::to_vec(&config).expect("json");
        assert_eq!(RelayConfig::read(&again[..]).expect("valid"), config);
    }
}

//! The guest's configuration file, written by novalet for each boot.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::unistd::geteuid;
use nova_proto::ids::BootToken;
use serde::{Deserialize, Serialize};

use crate::config::{
    ConfigError, Dependency, EgressSocket, Ingress, Link, Mistakes, is_host_name, is_socket_name, token_hex,
};
use crate::relay::config::{RelayConfig, default_max_connections, default_socket_dir};

/// Longest file that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// File name of the egress socket that is the proxy.
const PROXY_SOCKET: &str = "egress.sock";
/// What fits into a socket address beside its end.
const LONGEST_SOCKET_PATH: usize = 107;

/// Everything a guest needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestConfig {
    /// Name of the workload, also the guest's host name.
    pub workload: String,
    /// Address of the workload; /32 on lo.
    pub workload_ip: Ipv4Addr,
    /// Freshness of this boot.
    #[serde(with = "token_hex")]
    pub boot_token: BootToken,
    /// The way to the host.
    pub link: Link,
    /// Where the supervisor's instances listen, slot A first.
    pub host_ports: Vec<u32>,
    /// Where the relay listens for the supervisor.
    pub guest_port: u32,
    /// Whether the link loses half-close.
    pub framed: bool,
    /// Port of the HTTP proxy and SOCKS5 on 127.0.0.1.
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
    /// Folder of the egress sockets; none without it.
    #[serde(default)]
    pub egress_dir: Option<PathBuf>,
    /// Whether the app may ping; the guest's kernel needs tun devices.
    #[serde(default)]
    pub icmp: bool,
    /// Written anew, if given.
    #[serde(default)]
    pub hosts_file: Option<PathBuf>,
    /// Kernel modules, loaded in this order.
    #[serde(default)]
    pub modules: Vec<PathBuf>,
    /// Whether this is the first process of a microVM: mounts, modules, power off at the end.
    #[serde(default)]
    pub is_guest_init: bool,
    /// The relay's user and group; none where no user can be changed to (rootless process guests).
    #[serde(default)]
    pub relay_uid: Option<u32>,
    /// The app's user and group.
    #[serde(default)]
    pub app_uid: Option<u32>,
    /// The app.
    pub command: Vec<String>,
    /// Added to the app's environment, also over our own variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Where the CA goes that the supervisor intercepts with; none: it is not asked for.
    #[serde(default)]
    pub trust_dir: Option<PathBuf>,
    /// The relay's binary.
    #[serde(default = "default_relay")]
    pub relay: PathBuf,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum GuestConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others can read the boot token.
    #[error(
        "{path} must belong to uid {wanted} and be closed to everybody else, but it belongs to uid {owner} with mode \
         {mode:04o}: chown {wanted} it and chmod 0600 it, it holds the boot token", path = .path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Who must own it.
        wanted: u32,
        /// Who owns it.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// Not JSON of this shape.
    #[error("{path} is not a guest configuration: {source}", path = .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        source: serde_json::Error,
    },
    /// Values that do not fit.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
}

/// Whether one path is the other one, or below it.
pub(crate) fn are_nested(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

fn default_relay() -> PathBuf {
    PathBuf::from("/nova/nova-relay")
}

impl GuestConfig {
    /// Reads `path`, or standard input if it is `-`, and validates.
    ///
    /// # Errors
    /// When the file is exposed, unreadable or not valid.
    pub fn load(path: &Path) -> Result<Self, GuestConfigError> {
        let text = if path == Path::new("-") { read_to_end(io::stdin().lock()) } else { read_private(path)? };
        let text = text.map_err(|source| GuestConfigError::Io { path: path.to_owned(), source })?;
        let config: Self =
            serde_json::from_slice(&text).map_err(|source| GuestConfigError::Json { path: path.to_owned(), source })?;
        config.validate()?;
        Ok(config)
    }

    /// Checks every value.
    ///
    /// # Errors
    /// Lists all mistakes.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut mistakes = Mistakes::default();
        mistakes.unless(is_host_name(&self.workload), || format!("workload {:?} is not a host name", self.workload));
        mistakes.unless(!self.command.is_empty(), || "command is empty: name the app's program".into());
        for (field, uid) in [("relay_uid", self.relay_uid), ("app_uid", self.app_uid)] {
            mistakes.unless(uid != Some(0), || format!("{field} is 0: give an unprivileged user"));
            mistakes
                .unless(!(self.is_guest_init && uid.is_none()), || format!("{field} is missing: a microVM needs it"));
        }
        mistakes.unless(self.relay_uid.is_none() || self.relay_uid != self.app_uid, || {
            "relay_uid and app_uid are the same: the app could stop the relay, give two users".into()
        });
        for name in self.env.keys() {
            mistakes
                .unless(!name.is_empty() && !name.contains(['=', '\0']), || format!("env name {name:?} is not valid"));
        }
        self.check_egress_sockets(&mut mistakes);
        // Java's options are separated by spaces.
        if let Some(dir) = &self.trust_dir {
            self.check_apart("trust_dir", dir, &mut mistakes);
        }
        let is_plain = |dir: &Path| dir.is_absolute() && !dir.to_string_lossy().contains(char::is_whitespace);
        mistakes.unless(self.trust_dir.as_deref().is_none_or(is_plain), || {
            "trust_dir is not an absolute path without spaces: write one such as \"/run/nova/trust\"".into()
        });
        if let Err(ConfigError(more)) = self.for_relay().validate() {
            more.into_iter().for_each(|mistake| mistakes.unless(false, || mistake));
        }
        mistakes.finish()
    }

    /// The sockets in `egress_dir`: the proxy's, then one for each fixed dependency.
    #[must_use]
    pub fn egress_sockets(&self) -> Vec<EgressSocket> {
        if self.egress_dir.is_none() {
            return Vec::new();
        }
        let proxy = EgressSocket { name: PROXY_SOCKET.to_owned(), dependency: None };
        let dependencies = self
            .dependencies
            .iter()
            .map(|dependency| EgressSocket { name: dependency.socket_name(), dependency: Some(dependency.target()) });
        std::iter::once(proxy).chain(dependencies).collect()
    }

    /// The socket in `egress_dir` that is the proxy.
    #[must_use]
    pub fn proxy_socket(&self) -> Option<PathBuf> {
        self.egress_dir.as_ref().map(|dir| dir.join(PROXY_SOCKET))
    }

    fn check_egress_sockets(&self, mistakes: &mut Mistakes) {
        let Some(dir) = &self.egress_dir else { return };
        mistakes.unless(dir.is_absolute(), || format!("egress_dir {} must start with /", dir.display()));
        self.check_apart("egress_dir", dir, mistakes);
        let sockets = self.egress_sockets();
        for (index, EgressSocket { name, .. }) in sockets.iter().enumerate() {
            mistakes.unless(is_socket_name(name), || {
                format!("egress socket {name:?} must be one file name of printable ASCII")
            });
            let length = dir.join(name).as_os_str().len();
            mistakes.unless(length <= LONGEST_SOCKET_PATH, || {
                format!(
                    "the path of egress socket {name} has {length} bytes and may have {LONGEST_SOCKET_PATH}: give the \
                     dependency a shorter `socket`"
                )
            });
            let twice = sockets[..index].iter().any(|other| other.name == *name);
            mistakes.unless(!twice, || format!("two egress sockets are named {name}: give one another `socket`"));
        }
    }

    /// The app owns `socket_dir`: what is below it could be replaced by the app, and so could what it is below of.
    fn check_apart(&self, field: &str, dir: &Path, mistakes: &mut Mistakes) {
        let sockets = &self.socket_dir;
        for (name, dir) in [(field, dir), ("socket_dir", sockets)] {
            mistakes.unless(!dir.components().any(|part| part == Component::ParentDir), || {
                format!("{name} {} goes up with `..`: write where it leads", dir.display())
            });
        }
        mistakes.unless(!are_nested(dir, sockets), || {
            let (dir, sockets) = (dir.display(), sockets.display());
            format!("{field} {dir} and socket_dir {sockets} are one in the other: the app owns socket_dir, give two side by side")
        });
    }

    /// The relay's part.
    #[must_use]
    pub fn for_relay(&self) -> RelayConfig {
        RelayConfig {
            boot_token: self.boot_token,
            link: self.link.clone(),
            host_ports: self.host_ports.clone(),
            guest_port: self.guest_port,
            framed: self.framed,
            proxy_port: self.proxy_port,
            ingress: self.ingress.clone(),
            socket_dir: self.socket_dir.clone(),
            dependencies: self.dependencies.clone(),
            max_connections: self.max_connections,
            egress_sockets: self.egress_sockets(),
            ping_from: self.icmp.then_some(self.workload_ip),
        }
    }
}

/// Opens once and looks at what was opened, so that nothing can be swapped in between.
fn read_private(path: &Path) -> Result<io::Result<Vec<u8>>, GuestConfigError> {
    let io_error = |source| GuestConfigError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io_error)?;
    let metadata = file.metadata().map_err(io_error)?;
    let (wanted, owner, mode) = (geteuid().as_raw(), metadata.uid(), metadata.mode() & 0o7777);
    if owner != wanted || mode & 0o077 != 0 {
        return Err(GuestConfigError::Exposed { path: path.to_owned(), wanted, owner, mode });
    }
    Ok(read_to_end(file))
}

fn read_to_end(source: impl Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    source.take(LONGEST).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    pub(crate) fn sample() -> GuestConfig {
        serde_json::from_value(serde_json::json!({
            "workload": "x", "workload_ip": "10.64.3.11", "boot_token": "000102030405060708090a0b0c0d0e0f",
            "link": {"vsock": {"host_cid": 2}}, "host_ports": [15001], "guest_port": 15080, "framed": true,
            "proxy_port": 3128, "ingress": [{"tcp": 8080}],
            "dependencies": [{"host": "db.t.nova", "port": 5432, "guest_ip": "127.0.1.1"}],
            "hosts_file": "/etc/hosts", "modules": [], "is_guest_init": true, "relay_uid": 64001, "app_uid": 64002,
            "command": ["/nova/app"], "env": {"K": "V"}, "relay": "/nova/nova-relay",
        }))
        .expect("valid")
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_with_a_remedy() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("guest.json");
        std::fs::write(&path, serde_json::to_vec(&sample()).expect("json")).expect("write");
        for mode in [0o640, 0o604, 0o610] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("chmod");
            let error = GuestConfig::load(&path).expect_err("exposed").to_string();
            assert!(error.contains("chmod 0600"), "{error}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("chmod");
        assert_eq!(GuestConfig::load(&path).expect("valid"), sample());
    }

    // covers: D3c
    #[test]
    fn each_fixed_dependency_has_a_socket_of_its_own_beside_the_proxys() {
        let mut config = GuestConfig { egress_dir: Some("/run/nova/egress".into()), ..sample() };
        let second = Dependency {
            host: "other.t.nova".into(),
            socket: Some("other.sock".into()),
            ..sample().dependencies[0].clone()
        };
        config.dependencies.push(Dependency { guest_ip: Ipv4Addr::new(127, 0, 1, 2), ..second });
        assert_eq!(config.validate(), Ok(()));
        let sockets = config.egress_sockets().into_iter().map(|socket| (socket.name, socket.dependency));
        let wanted = [
            ("egress.sock", None),
            ("db.t.nova_5432.sock", Some("db.t.nova:5432")),
            ("other.sock", Some("other.t.nova:5432")),
        ];
        assert!(sockets.eq(wanted.map(|(name, dependency)| (name.to_owned(), dependency.map(str::to_owned)))));
        assert_eq!(GuestConfig { egress_dir: None, ..config }.egress_sockets(), []);
    }

    // covers: D3c
    #[test]
    fn names_of_egress_sockets_are_single_short_path_segments_and_differ() {
        let long = "x".repeat(100);
        for (name, problem) in [
            ("a/b", "one file name"),
            ("..", "one file name"),
            ("", "one file name"),
            ("a b", "one file name"),
            ("egress.sock", "two egress sockets"),
            (&long, "has 117 bytes and may have 107"),
        ] {
            let mut config = GuestConfig { egress_dir: Some("/run/nova/egress".into()), ..sample() };
            config.dependencies[0].socket = Some(name.to_owned());
            let error = config.validate().expect_err(name).to_string();
            assert!(error.contains(problem), "{name}: {error}");
        }
        let relative = GuestConfig { egress_dir: Some("egress".into()), ..sample() };
        assert!(relative.validate().is_err());
    }

    // covers: D3c
    #[test]
    fn no_folder_of_roots_is_in_the_apps_or_round_it() {
        for (sockets, other) in [
            ("/run/nova", "/run/nova"),
            ("/run/nova", "/run/nova/egress"),
            ("/run/nova/egress/app", "/run/nova/egress"),
            ("/run/nova/app", "/run/nova/app/../egress"),
            ("/run/nova/./app/", "/run/nova/app/egress"),
        ] {
            let egress = GuestConfig { socket_dir: sockets.into(), egress_dir: Some(other.into()), ..sample() };
            assert!(egress.validate().is_err(), "{sockets} {other}: the app could replace the sockets");
            let trust = GuestConfig { socket_dir: sockets.into(), trust_dir: Some(other.into()), ..sample() };
            assert!(trust.validate().is_err(), "{sockets} {other}: the app could lead root elsewhere");
        }
        let apart = GuestConfig {
            egress_dir: Some("/run/nova/egress".into()),
            trust_dir: Some("/run/nova/trust".into()),
            ..sample()
        };
        assert_eq!(apart.validate(), Ok(()), "beside the default");
    }

    #[test]
    fn a_microvm_runs_nothing_as_root_and_nothing_as_the_relay() {
        for (relay, app) in [(Some(0), Some(1)), (None, Some(1)), (Some(1), None), (Some(1), Some(1))] {
            let config = GuestConfig { relay_uid: relay, app_uid: app, ..sample() };
            assert!(config.validate().is_err(), "{relay:?} {app:?}");
        }
        assert!(GuestConfig { relay_uid: None, app_uid: None, is_guest_init: false, ..sample() }.validate().is_ok());
    }
}

//! `guest.json`: what nova-init is told at boot. The file holds the boot token, so only root of the guest may read it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::ingress::Ingress;
use crate::placement::Placement;

/// User of nova-relay in the guest.
pub const RELAY_UID: u32 = 64001;
/// User of the app in the guest.
pub const APP_UID: u32 = 64002;
/// Folder of the app's sockets in every kind of guest.
const SOCKET_DIR: &str = "/run/nova/sockets";
/// Folder of the certificates that the app shall trust, in every kind of guest.
const TRUST_DIR: &str = "/run/nova/trust";
/// Folder of the egress sockets in every kind of guest.
const EGRESS_DIR: &str = "/run/nova/egress";
/// Port of the relay's HTTP proxy on the guest's loopback.
const PROXY_PORT: u16 = 3128;

/// The whole file.
#[derive(Debug, Clone, Serialize)]
pub struct GuestConfig {
    /// DNS name of the workload, or its id.
    pub workload: String,
    /// Address that goes on the guest's `lo`.
    pub workload_ip: String,
    /// 32 hexadecimal digits.
    pub boot_token: String,
    /// How the guest reaches its host.
    pub link: Link,
    /// Ports of the supervisor's slots.
    pub host_ports: Vec<u32>,
    /// Port that the relay listens on.
    pub guest_port: u32,
    /// Records instead of raw bytes, because the muxer loses half-close.
    pub framed: bool,
    /// Port of the HTTP proxy in the guest.
    pub proxy_port: u16,
    /// Targets that the host may ask for.
    pub ingress: Vec<Ingress>,
    /// Folder of the app's sockets.
    pub socket_dir: String,
    /// Fixed dependencies.
    pub dependencies: Vec<Dependency>,
    /// Folder of the egress sockets.
    pub egress_dir: String,
    /// Whether the app may ping.
    pub icmp: bool,
    /// Hosts file that nova-init writes.
    pub hosts_file: String,
    /// Modules to load, in order.
    pub modules: Vec<String>,
    /// Whether nova-init is the first process of a machine of its own.
    pub is_guest_init: bool,
    /// User of the relay; none where only uid 0 exists.
    pub relay_uid: Option<u32>,
    /// User of the app; none where only uid 0 exists.
    pub app_uid: Option<u32>,
    /// The app.
    pub command: Vec<String>,
    /// Further environment of the app.
    pub env: BTreeMap<String, String>,
    /// Folder of the certificates that the app shall trust.
    pub trust_dir: String,
    /// The relay's program.
    pub relay: String,
}

/// How the guest reaches its host.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// AF_VSOCK.
    Vsock {
        /// CID of the host.
        host_cid: u32,
    },
    /// A folder with `host_<port>` and `guest_<port>`.
    Unix {
        /// The folder, as seen in the guest.
        dir: String,
    },
}

/// A fixed dependency of the app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Dependency {
    /// Name in the hosts file.
    pub host: String,
    /// Port on that name.
    pub port: u32,
    /// Loopback address that the relay listens on.
    pub guest_ip: String,
}

/// Ports of the guest channel (settled point K39).
#[derive(Debug, Clone)]
pub struct LinkPorts {
    /// Ports of the supervisor's slots.
    pub host: Vec<u32>,
    /// Port of the relay.
    pub guest: u32,
}

impl GuestConfig {
    /// The file for one boot of a placed pod.
    #[must_use]
    pub fn new(placement: &Placement, token: &[u8; 16], ports: &LinkPorts, place: GuestPlace) -> Self {
        let dependencies = placement.dependencies.iter().map(|dependency| Dependency {
            host: dependency.host.clone(),
            port: dependency.port,
            guest_ip: dependency.guest_ip.clone(),
        });
        let command = placement.guest.command.iter().map(|word| place.translate(word)).collect();
        Self {
            workload: placement.workload.clone(),
            workload_ip: placement.workload_ip.to_string(),
            boot_token: hex::encode(token),
            link: place.link,
            host_ports: ports.host.clone(),
            guest_port: ports.guest,
            framed: !placement.half_close,
            proxy_port: PROXY_PORT,
            ingress: placement.ingress(),
            socket_dir: SOCKET_DIR.to_owned(),
            dependencies: dependencies.collect(),
            egress_dir: EGRESS_DIR.to_owned(),
            icmp: place.has_tun,
            hosts_file: "/etc/hosts".into(),
            modules: place.modules,
            is_guest_init: place.is_guest_init,
            relay_uid: place.separate_users.then_some(RELAY_UID),
            app_uid: place.separate_users.then_some(APP_UID),
            command,
            env: placement.guest.env.clone(),
            trust_dir: TRUST_DIR.to_owned(),
            relay: format!("{}/nova-relay", place.programs),
        }
    }
}

/// What differs between kinds of guests.
#[derive(Debug, Clone)]
pub struct GuestPlace {
    /// How the guest reaches its host.
    pub link: Link,
    /// Modules to load.
    pub modules: Vec<String>,
    /// Whether the guest is a machine of its own.
    pub is_guest_init: bool,
    /// Whether relay and app can have users of their own.
    pub separate_users: bool,
    /// Whether the guest's kernel has tun devices, which pings need.
    pub has_tun: bool,
    /// Folder of the project's guest programs, as seen in the guest.
    pub programs: String,
}

impl GuestPlace {
    /// `/nova/...` in a command names a guest program, wherever those are in this kind of guest.
    fn translate(&self, word: &str) -> String {
        match word.strip_prefix("/nova/") {
            Some(rest) => format!("{}/{rest}", self.programs),
            None => word.to_owned(),
        }
    }
}

//! The world outside the node: a resolver, a stub of api.stripe.com, and a server that speaks first. Each records what it saw.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use serde_json::Value;

use super::files::WORKLOADS;
use super::net::{DNS, Network, STRIPE, TCP_FIRST};
use super::pki::Ca;
use super::spawn::{Proc, command, run};
use super::{files, wait_for};

/// Port of the server that speaks first.
pub const TCP_FIRST_PORT: u16 = 5432;
/// Its name.
pub const TCP_FIRST_HOST: &str = "db.example.net";
/// Name of the stub.
pub const STRIPE_HOST: &str = "api.stripe.com";

/// The servers, alive as long as this value.
pub struct World {
    records: PathBuf,
    _servers: Vec<Proc>,
}

impl World {
    /// Starts them and waits until they listen.
    ///
    /// # Errors
    /// When one does not start.
    pub fn start(net: &Network, ca: &Ca, run_dir: &Path, logs: &Path) -> anyhow::Result<Self> {
        let records = run_dir.join("world");
        std::fs::create_dir(&records)?;
        let identity = records.join("stripe.pem");
        files::write_secret(&identity, &ca.leaf(None, Some(STRIPE_HOST))?)?;
        let me = std::env::current_exe()?.display().to_string();
        let file = |name: &str| records.join(name).display().to_string();
        let dns_listen = format!("{DNS}:53");
        let stripe_record = format!("{STRIPE_HOST}={STRIPE}");
        let tcp_record = format!("{TCP_FIRST_HOST}={TCP_FIRST}");
        let (stripe_listen, tcp_listen) = (format!("{STRIPE}:443"), format!("{TCP_FIRST}:{TCP_FIRST_PORT}"));
        let (identity, stripe_file) = (identity.display().to_string(), file("stripe"));
        let start = |name: &str, arguments: &[&str]| {
            Proc::start(name, net.world, logs, [me.as_str()].into_iter().chain(arguments.iter().copied()))
        };
        let mut zone = vec![stripe_record, tcp_record];
        // As the resolver of a VPC knows them: no supervisor invents an address.
        zone.extend(WORKLOADS.iter().map(|workload| format!("{}={}", workload.host(), workload.ip)));
        let dns_file = file("dns");
        let mut dns = vec!["dns", "--listen", &dns_listen, "--records", &dns_file];
        dns.extend(zone.iter().flat_map(|record| ["--record", record.as_str()]));
        let servers = vec![
            start("dns", &dns)?,
            start(
                "stripe",
                &[
                    "upstream",
                    "--name",
                    "stripe",
                    "--listen",
                    &stripe_listen,
                    "--identity",
                    &identity,
                    "--records",
                    &stripe_file,
                ],
            )?,
            start("tcp-first", &["tcp-first", "--listen", &tcp_listen, "--records", &file("tcp-first")])?,
        ];
        let listening = [(53, DNS), (443, STRIPE), (TCP_FIRST_PORT, TCP_FIRST)];
        wait_for("the world's servers", Duration::from_secs(10), || {
            let sockets = run(&mut command(net.world, ["cat", "/proc/net/tcp"])?)?;
            let sockets = String::from_utf8_lossy(&sockets.stdout).into_owned();
            match listening.iter().find(|(port, _)| !sockets.contains(&format!(":{port:04X} 00000000:0000 0A"))) {
                Some((port, address)) => bail!("{address}:{port} does not listen"),
                None => Ok(()),
            }
        })?;
        Ok(Self { records, _servers: servers })
    }

    /// What `dns`, `stripe` or `tcp-first` saw so far.
    ///
    /// # Errors
    /// When its file cannot be read.
    pub fn records(&self, server: &str) -> anyhow::Result<Vec<Value>> {
        files::json_lines(&self.records.join(server))
    }
}

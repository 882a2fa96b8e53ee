//! The agent as a whole: makes its folders, starts its servers, follows the placements file, and leaves nothing behind.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::stat::{Mode, umask};
use tokio::signal::unix::{SignalKind, signal};

use crate::agent::Agent;
use crate::cli::{GuestKind, RouteMode, RunOptions};
use crate::guest::config::LinkPorts;
use crate::guest::{Guests, Microvm, MicrovmOptions, ProcessGuests};
use crate::history::{History, now_ms};
use crate::image::ImageSpec;
use crate::ipam::Ipam;
use crate::load::{load, tell_mistakes};
use crate::operator;
use crate::placement::Placement;
use crate::pods::Node;
use crate::routes::Routes;
use crate::server;
use crate::sockets;
use crate::table::Table;
use crate::watch::FileWatch;

/// How often the placements file is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Time that operators and supervisors get to read the last answer.
const FAREWELL: Duration = Duration::from_millis(500);

/// Runs the agent until it is told to stop.
///
/// # Errors
/// When it cannot start; what it started is gone again then.
pub async fn run(mut options: RunOptions) -> anyhow::Result<()> {
    options.make_absolute()?;
    // Sockets that children make are for owner and group; the group is the supervisor's through the set-gid folder.
    umask(Mode::from_bits_truncate(0o007));
    let placements = match load(&options.placements, options.node.as_deref()) {
        Ok(placements) => placements,
        Err(mistakes) => {
            tell_mistakes(&mistakes, "nothing was started");
            bail!("{} mistakes in {}", mistakes.len(), options.placements.display());
        }
    };
    let watch = FileWatch::new(&options.placements);
    let _lock = make_folders(&options)?;
    let node = Arc::new(make_node(&options)?);
    let result = serve(&options, Arc::clone(&node), placements, watch).await;
    clean(&options);
    result
}

async fn serve(
    options: &RunOptions,
    node: Arc<Node>,
    placements: Vec<Placement>,
    watch: FileWatch,
) -> anyhow::Result<()> {
    let own_uid = nix::unistd::geteuid().as_raw();
    let mut uids = options.supervisor_uid.clone();
    uids.push(own_uid);
    let listener = sockets::listen(&options.control_socket, 0o660, options.supervisor_gid)?;
    let operators = sockets::listen(&options.run_dir.join(operator::SOCKET), 0o600, None)?;
    let mut signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let server = tokio::spawn(server::serve(listener, uids, Arc::clone(&node.table)));
    let agent = Arc::new(Agent::new(node));
    let operators = tokio::spawn(operator::server::serve(operators, Arc::clone(&agent)));
    agent.pods().place(placements);
    tracing::info!(socket = %options.control_socket.display(), "ready: supervisors may connect");
    follow(&agent, options, watch, &mut signals).await;
    let tasks = agent.pods().end(false);
    for task in tasks {
        let _ = task.await;
    }
    tokio::time::sleep(FAREWELL).await;
    operators.abort();
    server.abort();
    Ok(())
}

/// Follows the file until somebody stops us: a signal at once, an operator when everything has drained.
async fn follow(
    agent: &Agent,
    options: &RunOptions,
    mut watch: FileWatch,
    signals: &mut [tokio::signal::unix::Signal; 2],
) {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let [terminate, interrupt] = signals;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = terminate.recv() => return,
            _ = interrupt.recv() => return,
        }
        if agent.stops_gently() {
            if agent.pods().is_empty() {
                return;
            }
        } else if watch.look() {
            agent.reload(&options.placements, options.node.as_deref());
        }
    }
}

fn make_node(options: &RunOptions) -> anyhow::Result<Node> {
    Ok(Node {
        table: Arc::new(Table::new(now_ms())),
        guests: make_guests(options)?,
        routes: match options.routes {
            RouteMode::Managed => Routes::Managed,
            RouteMode::External => Routes::External(options.supervisor_netns.clone()),
        },
        ipam: Ipam::new(Duration::from_millis(options.ip_cooldown_ms)),
        history: History::default(),
        ports: LinkPorts { host: options.host_port.clone(), guest: options.guest_port },
        guest_root: options.guest_root.clone(),
        run_dir: options.run_dir.clone(),
        gid: options.supervisor_gid,
        drain_margin: Duration::from_millis(options.drain_margin_ms),
        generations: Mutex::new(BTreeMap::new()),
    })
}

fn make_guests(options: &RunOptions) -> anyhow::Result<Guests> {
    let self_exe = std::env::current_exe().context("cannot find our own program")?;
    let bin_dir =
        || options.guest_bin_dir.clone().context("name the folder of nova-init and nova-relay with --guest-bin-dir");
    Ok(match options.guests {
        GuestKind::None => Guests::None,
        GuestKind::Process => {
            let bin_dir = bin_dir()?;
            for program in ["nova-init", "nova-relay"] {
                if !bin_dir.join(program).exists() {
                    bail!("{} is missing: build the guest programs", bin_dir.join(program).display());
                }
            }
            let hide = vec![options.guest_root.clone(), options.run_dir.clone()];
            Guests::Process(ProcessGuests { self_exe, bin_dir, hide })
        }
        GuestKind::Microvm => {
            let vm = &options.microvm;
            let image = ImageSpec {
                bin_dir: bin_dir()?,
                busybox: vm.busybox.clone(),
                curl: vm.curl.exists().then(|| vm.curl.clone()),
                ping: vm.ping.exists().then(|| vm.ping.clone()),
                modules: vm.modules()?,
                machine: vm.machine,
                extra_modules: vm.extra_module.clone(),
            };
            let options_vm = MicrovmOptions {
                self_exe,
                qemu: vm.qemu.clone(),
                vhost_device_vsock: vm.vhost_device_vsock()?,
                kernel: vm.kernel()?,
                machine: vm.machine,
                accel: vm.accel,
            };
            Guests::Microvm(Box::new(Microvm::prepare(options_vm, &image, &options.run_dir)?))
        }
    })
}

/// Makes run dir and guest root, and takes the run dir for us: the lock goes with the process.
fn make_folders(options: &RunOptions) -> anyhow::Result<fs::File> {
    let run = &options.run_dir;
    fs::create_dir_all(run).with_context(|| format!("cannot make {}", run.display()))?;
    let meta = fs::metadata(run)?;
    if meta.uid() != nix::unistd::geteuid().as_raw() {
        bail!("{} belongs to another user: choose a folder of your own with --run-dir", run.display());
    }
    fs::set_permissions(run, fs::Permissions::from_mode(0o700))?;
    let lock = fs::File::create(run.join("lock")).context("cannot make the lock file")?;
    if lock.try_lock().is_err() {
        bail!("another novalet-ref runs in {}: stop it with `novalet-ref stop --run-dir {0}`", run.display());
    }
    let root = &options.guest_root;
    fs::create_dir_all(root).with_context(|| format!("cannot make {}", root.display()))?;
    if let Some(gid) = options.supervisor_gid {
        std::os::unix::fs::chown(root, None, Some(gid))?;
    }
    fs::set_permissions(root, fs::Permissions::from_mode(0o750))?;
    // What an agent that was killed left behind.
    let _ = fs::remove_dir_all(run.join("pods"));
    Ok(lock)
}

/// Removes what this run made. Logs of the pods stay, so that a failed run can be understood.
fn clean(options: &RunOptions) {
    let _ = fs::remove_file(&options.control_socket);
    for file in [operator::SOCKET, "base.cpio", "lock"] {
        let _ = fs::remove_file(options.run_dir.join(file));
    }
}

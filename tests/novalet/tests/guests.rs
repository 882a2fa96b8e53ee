//! Process guests are owned: whatever ends the agent ends them.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Agent, Supervisor, placement, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nova_novalet::history::Step;
use nova_novalet::pods::Phase as PodPhase;
use nova_proto::control::Phase;

/// Rootless: a user namespace in which we are root, as the demo does it.
const ROOTLESS: [&str; 5] = ["unshare", "--user", "--map-root-user", "--net", "--mount"];

// covers: A2
#[tokio::test]
async fn with_external_routes_the_route_comes_with_the_svid_and_goes_after_the_endpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let in_node = [&ROOTLESS[..], &["sh", "-c", "busybox ip link set lo up && exec \"$@\"", "sh"]].concat();
    let agent = Agent::start_with(folder, &in_node, &placement("a", "10.64.3.21", ""), &["--routes", "external"]);
    agent.status();
    let table = Path::new("/proc").join(agent.child.id().to_string()).join("net/fib_trie");
    let has_route = || fs::read_to_string(&table).expect("readable").contains("10.64.3.21");
    let mut supervisor = Supervisor::connect(&agent.path("control.sock"), 0).await;
    let endpoint = supervisor.first_endpoint().await;
    assert!(!has_route());
    supervisor.ack(&endpoint, Phase::SvidReady).await;
    agent.eventually("the route", |_| has_route()).await;
    agent.write("  []\n");
    let draining = supervisor.upsert().await;
    assert!(has_route(), "live connections need it");
    supervisor.ack(&draining, Phase::Drained).await;
    let status = agent.eventually("gone", |status| status.pods.is_empty()).await;
    assert!(!has_route());
    let steps: Vec<Step> = status.history.iter().map(|event| event.step).collect();
    let end = [Step::Draining, Step::Drained, Step::Removed, Step::RouteRemoved, Step::GuestStopped, Step::IpCooling];
    assert!(steps.ends_with(&end), "{steps:?}");
}

/// An agent with one process guest whose init is `script`.
fn agent(script: &str) -> Agent {
    let folder = tempfile::tempdir().expect("a folder");
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).expect("a folder");
    for program in ["nova-init", "nova-relay"] {
        fs::write(bin.join(program), script).expect("written");
        fs::set_permissions(bin.join(program), fs::Permissions::from_mode(0o755)).expect("its mode");
    }
    let bin = bin.display().to_string();
    Agent::start_with(
        folder,
        &ROOTLESS,
        &placement("a", "10.64.3.21", ""),
        &["--guests", "process", "--guest-bin-dir", &bin],
    )
}

/// The processes that were started from `folder`'s agent, at any depth: they inherit its environment.
fn marked(folder: &Path) -> Vec<i32> {
    let mark = format!("NOVA_TEST_MARK={}\0", folder.display()).into_bytes();
    let processes = fs::read_dir("/proc").expect("proc").flatten();
    processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let environment = fs::read(entry.path().join("environ")).ok()?;
            environment.windows(mark.len()).any(|window| window == mark).then_some(pid)
        })
        .collect()
}

const BUSY: &str = "#!/bin/sh\nsleep 1000 &\n(trap '' TERM; sleep 1000) &\nsleep 1000\n";

// covers: A14
#[test]
fn kill_9_of_the_agent_leaves_no_process_behind() {
    let agent = agent(BUSY);
    agent.until("told pending", |status| status.pods.iter().any(|pod| pod.status.phase == PodPhase::Pending));
    let folder = agent.folder.path().to_path_buf();
    until("guest, its children, muxer, launcher", || (marked(&folder).len() >= 7).then_some(()));
    kill(Pid::from_raw(i32::try_from(agent.child.id()).expect("a pid")), Signal::SIGKILL).expect("killed");
    // Our own child stays visible until it is reaped, without an environment.
    until("nothing is left", || marked(&folder).is_empty().then_some(()));
}

// covers: A14
#[test]
fn sigterm_ends_guests_and_muxers_before_the_agent_ends() {
    let mut agent = agent(BUSY);
    agent.until("told pending", |status| status.pods.iter().any(|pod| pod.status.phase == PodPhase::Pending));
    kill(Pid::from_raw(i32::try_from(agent.child.id()).expect("a pid")), Signal::SIGTERM).expect("sent");
    assert!(until("it ends", || agent.child.try_wait().expect("a child")).success());
    assert_eq!(marked(agent.folder.path()), Vec::<i32>::new());
    assert!(!agent.path("guests/a").exists());
    assert!(!agent.path("run/pods/a/guest.json").exists(), "the token goes");
}

// covers: A2
#[test]
fn a_guest_that_ends_by_itself_is_reported_and_started_only_when_somebody_asks() {
    let agent = agent("#!/bin/sh\nexit 3\n");
    let status = agent.until("failed", |status| status.pods.iter().any(|pod| pod.status.phase == PodPhase::Failed));
    let pod = &status.pods[0].status;
    assert!(pod.reason.contains("exit status: 3") && pod.reason.contains("novalet-ref restart a"), "{}", pod.reason);
    assert!(pod.pids.is_empty());
}

// covers: A3
#[test]
fn a_process_guest_sees_only_lo_and_neither_our_folders_nor_those_of_other_pods() {
    let script = "#!/bin/sh\ncat /proc/net/dev; ls /run; ls -A @ROOT@ @RUN@; echo written > /etc/hosts && cat /etc/hosts\n\
                  grep -c boot_token /run/nova/guest.json; touch /run/nova/bin/x || echo read-only; echo done; sleep 1000\n";
    // Not under /tmp, which is covered anyway.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let hosts = fs::read_to_string("/etc/hosts").expect("hosts");
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).expect("a folder");
    let root = folder.path().display().to_string();
    let script = script.replace("@ROOT@", &format!("{root}/guests")).replace("@RUN@", &format!("{root}/run"));
    for program in ["nova-init", "nova-relay"] {
        fs::write(bin.join(program), &script).expect("written");
        fs::set_permissions(bin.join(program), fs::Permissions::from_mode(0o755)).expect("its mode");
    }
    let bin = bin.display().to_string();
    let more = ["--guests", "process", "--guest-bin-dir", bin.as_str()];
    let agent = Agent::start_with(folder, &ROOTLESS, &placement("a", "10.64.3.21", ""), &more);
    let log = agent.path("run/pods/a/guest.log");
    let text =
        until("the guest has looked around", || fs::read_to_string(&log).ok().filter(|text| text.contains("done")));
    assert!(!text.contains("eth0") && text.contains("lo:"), "{text}");
    assert!(text.contains("written\n1\n") && text.contains("read-only"), "{text}");
    assert!(!text.contains("novalet.sock") && !text.contains("base.cpio") && !text.contains("No such file"), "{text}");
    assert_eq!(fs::read_to_string("/etc/hosts").expect("hosts"), hosts, "the machine's own is as it was");
}
